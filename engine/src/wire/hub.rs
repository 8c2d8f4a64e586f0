//! `/api/hub`: the models of this machine and of the hub, what is being fetched and what is being made.

mod bodies;
mod requests;
#[cfg(test)]
mod tests;

pub use bodies::{
    ChangesBody, DeletedDownloadBody, DownloadBody, DownloadsBody, EventBody, JobBody, JobsBody,
    LibraryBody, RemovedBody, RepoBody, SearchBody, TokenBody,
};
pub use requests::{
    ConvertRequest, FetchRequest, ImportRequest, convert, fetch, import, job, repo, revision,
    search, token,
};
