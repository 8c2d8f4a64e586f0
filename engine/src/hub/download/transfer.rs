//! Fetching one file: on from what is there, again after what may pass, until its content is right.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap};
use reqwest::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinError;

use crate::error::{Code, Error, Result};
use crate::hub::download::content::{Content, spoiled};
use crate::hub::download::progress::Counter;
use crate::hub::download::run::Run;
use crate::hub::download::staging::cannot;
use crate::hub::download::wish::Stop;
use crate::hub::manifest::ManifestFile;
use crate::hub::remote::{Attempts, Beginning, Trouble, broken};
use crate::limits;

/// How the fetching of a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    /// It is whole, right, durable and under its own name.
    Whole,
    /// Somebody wished so; what is there is kept.
    Stopped,
}

/// One file that is being fetched.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) run: Arc<Run>,
    pub(super) file: ManifestFile,
    pub(super) done: Arc<Counter>,
    pub(super) stop: Stop,
}

/// How an attempt ended that was no trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Full,
    Stopped,
}

/// Where the bytes of an answer belong.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Placed {
    /// Behind those that are there.
    Behind,
    /// At the start: it is the whole file.
    AtStart,
    /// Nowhere; what is there is of another content, so it is asked for anew.
    Nowhere,
}

impl Transfer {
    /// Fetches the file.
    ///
    /// # Errors
    /// Those of the hub, once patience ends; `DiskFull` and `Io`; `HubUnreachable` for a content that is wrong again.
    pub(super) async fn fetch(mut self) -> Result<Fetched> {
        if self.stop.is_wished() {
            return Ok(Fetched::Stopped);
        }
        let Some(mut content) = self.open().await? else {
            return Ok(Fetched::Stopped);
        };
        let mut attempts = Attempts::new(self.run.remote.config().patience);
        let (mut most_bytes, mut spoiled_times) = (content.bytes(), 0);
        loop {
            if content.is_full() {
                let Some(emptied) = self.settle(content).await? else {
                    return Ok(Fetched::Whole);
                };
                content = emptied;
                spoiled_times += 1;
                if spoiled_times == limits::DOWNLOAD_SPOILED_MAX {
                    return Err(spoiled(&self.file));
                }
            }
            let (after, outcome) = self.attempt(content).await?;
            content = after;
            // Only bytes that were never there before are progress: a server without ranges sends the first again.
            if content.bytes() > most_bytes {
                most_bytes = content.bytes();
                attempts.progressed();
            }
            match outcome {
                Ok(Attempt::Full) => {}
                Ok(Attempt::Stopped) => return Ok(Fetched::Stopped),
                Err(trouble) => {
                    let pause = self.run.remote.pause(&mut attempts, trouble);
                    tokio::select! {
                        paused = pause => paused?,
                        () = self.stop.wished() => return Ok(Fetched::Stopped),
                    }
                }
            }
        }
    }

    /// Opens what is there; `None` when somebody wished to stop meanwhile.
    async fn open(&self) -> Result<Option<Content>> {
        let (staging, file, stop) =
            (self.run.staging.clone(), self.file.clone(), self.stop.clone());
        let opened =
            blocking(move || Content::open(&staging, &file, |_| !stop.is_wished())).await?;
        self.done.set(opened.as_ref().map_or(0, Content::bytes));
        Ok(opened)
    }

    /// Gives a full file its name if it is right, or returns it emptied.
    async fn settle(&self, mut content: Content) -> Result<Option<Content>> {
        let (staging, file) = (self.run.staging.clone(), self.file.clone());
        let emptied = blocking(move || {
            let path = staging.partial(&file);
            if content.is_right() {
                content.sync().map_err(cannot("flush", &path))?;
                return staging.finish(&file).map(|()| None);
            }
            content.restart().map_err(cannot("empty", &path))?;
            Ok(Some(content))
        })
        .await?;
        if emptied.is_some() {
            self.done.set(0);
        }
        Ok(emptied)
    }

    /// One request and what comes of it. Trouble is told beside what is there now.
    async fn attempt(
        &mut self,
        mut content: Content,
    ) -> Result<(Content, Result<Attempt, Trouble>)> {
        let beginning = (content.bytes() > 0)
            .then(|| Beginning { bytes: content.bytes(), tag: self.run.staging.tag(&self.file) });
        let url = self.run.remote.file_url(&self.run.repo, &self.run.commit, &self.file.path);
        let about = self.about();
        let asked = self.run.remote.get(&url, &about, beginning.as_ref());
        let response = tokio::select! {
            answer = asked => answer,
            () = self.stop.wished() => return Ok((content, Ok(Attempt::Stopped))),
        };
        let placed = response.and_then(|response| {
            let placed =
                place(response.status(), response.headers(), beginning.as_ref(), self.file.bytes);
            placed.map(|placed| (response, placed)).map_err(|why| self.wrong(&why))
        });
        let (response, placed) = match placed {
            Ok(placed) => placed,
            Err(trouble) => return Ok((content, Err(trouble))),
        };
        if placed != Placed::Behind {
            content.restart().map_err(cannot("empty", &self.run.staging.partial(&self.file)))?;
            self.done.set(0);
        }
        if placed == Placed::Nowhere {
            return Ok((content, Err(self.wrong("it is not what was there before"))));
        }
        self.run.staging.set_tag(&self.file, strong_tag(response.headers()))?;
        self.pour(content, response).await
    }

    /// Has what arrives written down, by a thread of its own.
    async fn pour(
        &mut self,
        mut content: Content,
        response: Response,
    ) -> Result<(Content, Result<Attempt, Trouble>)> {
        let (pieces, arriving) = mpsc::channel(limits::DOWNLOAD_QUEUE_PIECES);
        let left_bytes = self.file.bytes - content.bytes();
        let writing = tokio::task::spawn_blocking(move || {
            let written = content.take(arriving);
            (content, written)
        });
        let outcome = self.receive(response, left_bytes, pieces).await;
        let (content, written) = writing.await.map_err(|error| lost(&error))?;
        self.done.set(content.bytes());
        written.map_err(cannot("write", &self.run.staging.partial(&self.file)))?;
        Ok((content, outcome))
    }

    /// Hands on what arrives, up to `left_bytes`.
    async fn receive(
        &mut self,
        mut response: Response,
        mut left_bytes: u64,
        pieces: mpsc::Sender<Bytes>,
    ) -> Result<Attempt, Trouble> {
        loop {
            let piece = tokio::select! {
                piece = response.chunk() => piece.map_err(|error| broken(&self.about(), &error))?,
                () = self.stop.wished() => return Ok(Attempt::Stopped),
            };
            let Some(piece) = piece else {
                let ended = || self.wrong("the answer ended before the file did");
                return if left_bytes == 0 { Ok(Attempt::Full) } else { Err(ended()) };
            };
            let bytes = piece.len();
            left_bytes = left_bytes
                .checked_sub(bytes as u64)
                .ok_or_else(|| self.wrong("the answer is longer than the file"))?;
            // Only a writer that failed takes no more, and tells why itself.
            if pieces.send(piece).await.is_err() {
                return Ok(Attempt::Stopped);
            }
            self.done.add(bytes as u64);
            tokio::select! {
                () = self.run.limiter.take(bytes) => {}
                () = self.stop.wished() => return Ok(Attempt::Stopped),
            }
        }
    }

    fn about(&self) -> String {
        format!("`{}` of `{}`", self.file.path, self.run.repo)
    }

    fn wrong(&self, why: &str) -> Trouble {
        Trouble::passing(Error::new(
            Code::HubUnreachable,
            format!("failed to fetch {}: {why}", self.about()),
        ))
    }
}

/// Where the bytes of an answer belong, when `beginning` was asked for, of a file of `total_bytes`.
fn place(
    status: StatusCode,
    headers: &HeaderMap,
    beginning: Option<&Beginning>,
    total_bytes: u64,
) -> Result<Placed, String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match (status, beginning) {
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => Ok(Placed::Nowhere),
        (StatusCode::PARTIAL_CONTENT, Some(beginning)) => {
            let (start, of_bytes) =
                text(CONTENT_RANGE).and_then(parse_range).ok_or("it says no range of the file")?;
            let other = beginning
                .tag
                .as_deref()
                .zip(strong_tag(headers))
                .is_some_and(|(had, has)| had != has);
            let fits =
                start == beginning.bytes && of_bytes.is_none_or(|bytes| bytes == total_bytes);
            Ok(if fits && !other { Placed::Behind } else { Placed::Nowhere })
        }
        (StatusCode::OK, _) => {
            match text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()) {
                Some(bytes) if bytes != total_bytes => {
                    Err(format!("it is {bytes} bytes long, and the hub lists {total_bytes}"))
                }
                _ => Ok(Placed::AtStart),
            }
        }
        (status, _) => Err(format!("it was answered by {}", status.as_u16())),
    }
}

/// The start and the length of the whole in `bytes 5-9/10`; the length may be `*`.
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    if total.trim() == "*" {
        return Some((start, None));
    }
    Some((start, Some(total.trim().parse().ok()?)))
}

/// The answer's tag, if it is one that stands for every byte (RFC 9110, section 8.8.1).
fn strong_tag(headers: &HeaderMap) -> Option<&str> {
    let tag = headers.get(ETAG)?.to_str().ok()?;
    (tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2).then_some(tag)
}

/// Runs `work` where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| lost(&error))?
}

fn lost(error: &JoinError) -> Error {
    Error::new(Code::Internal, format!("a thread of a download ended: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        status: u16,
        headers: &[(&str, &str)],
        had: Option<(u64, &str)>,
        expected: Result<Placed, &str>,
    ) {
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let beginning = had.map(|(bytes, tag)| Beginning {
            bytes,
            tag: (!tag.is_empty()).then(|| tag.to_owned()),
        });
        let status = StatusCode::from_u16(status).unwrap();
        let placed = place(status, &HeaderMap::from_iter(headers), beginning.as_ref(), 10);
        assert_eq!(placed, expected.map_err(str::to_owned));
    }

    #[test]
    fn an_answer_is_put_where_it_says_it_belongs_or_nowhere() {
        let had = Some((4, "\"a\""));
        check(206, &[("content-range", "bytes 4-9/10")], had, Ok(Placed::Behind));
        check(206, &[("content-range", "bytes 4-9/*"), ("etag", "\"a\"")], had, Ok(Placed::Behind));
        check(
            206,
            &[("content-range", "bytes 4-9/10"), ("etag", "\"b\"")],
            had,
            Ok(Placed::Nowhere),
        );
        check(
            206,
            &[("content-range", "bytes 4-9/10"), ("etag", "\"b\"")],
            Some((4, "")),
            Ok(Placed::Behind),
        );
        check(206, &[("content-range", "bytes 3-9/10")], had, Ok(Placed::Nowhere));
        check(206, &[("content-range", "bytes 4-9/11")], had, Ok(Placed::Nowhere));
        check(206, &[], had, Err("it says no range of the file"));
        check(206, &[("content-range", "bytes 0-9/10")], None, Err("it was answered by 206"));
        check(416, &[], had, Ok(Placed::Nowhere));
        check(200, &[("content-length", "10")], had, Ok(Placed::AtStart));
        check(200, &[], None, Ok(Placed::AtStart));
        check(
            200,
            &[("content-length", "9")],
            None,
            Err("it is 9 bytes long, and the hub lists 10"),
        );
        check(204, &[], None, Err("it was answered by 204"));
    }

    #[test]
    fn only_tags_that_stand_for_every_byte_are_kept() {
        for (tag, strong) in [("\"x\"", true), ("W/\"x\"", false), ("x", false), ("\"\"", false)] {
            let headers = HeaderMap::from_iter([(ETAG, tag.parse().unwrap())]);
            assert_eq!(strong_tag(&headers).is_some(), strong, "{tag}");
        }
    }
}
