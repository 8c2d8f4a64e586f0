//! What the hub means when it does not give what was asked for.

use reqwest::{Response, StatusCode};

use super::patience::{Trouble, asked_pause, is_passing};
use crate::error::{Code, Error};

/// The header in which the hub says what is wrong (huggingface_hub's `utils/_http.py` knows its values).
const ERROR_CODE: &str = "x-error-code";

/// Returns the answer, unless it is a refusal.
pub(super) async fn check(
    response: Response,
    about: &str,
    has_token: bool,
) -> Result<Response, Trouble> {
    let status = response.status();
    // That a range cannot be served is for whoever asked for one.
    if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(response);
    }
    let asked = asked_pause(response.headers());
    let code = response.headers().get(ERROR_CODE).and_then(|code| code.to_str().ok());
    let error = meaning(status, code.unwrap_or_default(), about, has_token);
    Err(if is_passing(status) {
        Trouble::Passing { error, asked }
    } else {
        Trouble::Lasting(error)
    })
}

fn meaning(status: StatusCode, code: &str, about: &str, has_token: bool) -> Error {
    let denied = |why: &str| Error::new(Code::HubDenied, format!("failed to fetch {about}: {why}"));
    let missing =
        |why: &str| Error::new(Code::ModelNotFound, format!("failed to fetch {about}: {why}"));
    let give = "give a token of an account that has access: `slipstream token set`, or `HF_TOKEN`";
    match (status, code, has_token) {
        (_, "GatedRepo", false) => denied("it is gated, and no token was given")
            .with_hint("accept its terms on its page at the hub, then run `slipstream token set` or set `HF_TOKEN`"),
        (_, "GatedRepo", true) => denied("it is gated, and the token's account has not been let in")
            .with_hint("accept its terms on its page at the hub, with the account that the token is of"),
        (_, "RevisionNotFound", _) => missing("it has no such revision").with_hint("look at its branches on the hub"),
        (_, "EntryNotFound", _) => missing("it has no such file"),
        (StatusCode::UNAUTHORIZED, "RepoNotFound", false) => {
            missing("the hub has no such repository, or it is private").with_hint(give)
        }
        (_, "RepoNotFound", _) => missing("the hub has no such repository for this token's account")
            .with_hint("check how its name is written; `slipstream search` finds models"),
        (StatusCode::UNAUTHORIZED, _, true) => denied("the hub does not take the token")
            .with_hint("is it expired? Give another one by `slipstream token set` or `HF_TOKEN`"),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _, false) => {
            denied("it is not open to everyone, and no token was given").with_hint(give)
        }
        (StatusCode::FORBIDDEN, _, true) => denied("the token does not give access to it").with_hint(give),
        (StatusCode::NOT_FOUND, _, _) => {
            missing("the hub does not have it").with_hint("check how its name is written")
        }
        (StatusCode::TOO_MANY_REQUESTS, _, _) => {
            let message = format!("failed to fetch {about}: the hub has had too many requests from here");
            Error::new(Code::HubUnreachable, message).with_hint("with a token it takes more of them")
        }
        _ => Error::new(
            Code::HubUnreachable,
            format!("failed to fetch {about}: the hub answered {}", status.as_u16()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, code: &str, has_token: bool, expected: Code, words: &str) {
        let status = StatusCode::from_u16(status).unwrap();
        let error = meaning(status, code, "`owner/name`", has_token);
        assert_eq!(error.code(), expected, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.message().contains("`owner/name`"));
    }

    #[test]
    fn every_refusal_says_what_to_do_about_it() {
        check(401, "GatedRepo", false, Code::HubDenied, "slipstream token set");
        check(403, "GatedRepo", true, Code::HubDenied, "accept its terms");
        check(401, "RepoNotFound", false, Code::ModelNotFound, "or it is private");
        check(404, "RepoNotFound", true, Code::ModelNotFound, "slipstream search");
        check(401, "", true, Code::HubDenied, "does not take the token");
        check(401, "", false, Code::HubDenied, "no token was given");
        check(403, "", true, Code::HubDenied, "does not give access");
        check(404, "RevisionNotFound", true, Code::ModelNotFound, "no such revision");
        check(404, "EntryNotFound", true, Code::ModelNotFound, "no such file");
        check(404, "", false, Code::ModelNotFound, "does not have it");
        check(429, "", false, Code::HubUnreachable, "too many requests");
        check(503, "", false, Code::HubUnreachable, "answered 503");
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (status, passing) in [
            (408, true),
            (429, true),
            (500, true),
            (503, true),
            (501, false),
            (400, false),
            (403, false),
            (404, false),
        ] {
            assert_eq!(is_passing(StatusCode::from_u16(status).unwrap()), passing, "{status}");
        }
    }
}
