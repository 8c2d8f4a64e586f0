//! A client for one server on this machine, as small as a benchmark needs. It speaks HTTP/1.0, so
//! that answers end with the connection and event streams come as plain lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A server that says nothing for this long is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Asks for `path` and returns the JSON of a good answer.
pub(crate) fn get(port: u16, path: &str) -> Result<Value> {
    let mut answer = send(port, &format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n"))?;
    let mut body = String::new();
    answer.read_to_string(&mut body).context("failed to read an answer")?;
    serde_json::from_str(&body).with_context(|| format!("failed to parse the answer `{body}`"))
}

/// Sends `body` to `path` and returns the stream of events that comes back.
pub(crate) fn post_for_events(port: u16, path: &str, body: &Value) -> Result<Events> {
    Ok(Events { answer: send(port, &request(port, "POST", path, body))? })
}

/// Sends `body` to `path`; returns the status and the JSON that comes back, whatever it is.
pub(crate) fn ask(port: u16, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
    let mut answer = write(port, &request(port, method, path, body))?;
    let status = read_head(&mut answer)?;
    let mut body = String::new();
    answer.read_to_string(&mut body).context("failed to read an answer")?;
    let json = serde_json::from_str(&body);
    Ok((status, json.with_context(|| format!("failed to parse the answer `{body}`"))?))
}

/// Sends `body` to `path`; whoever drops the connection leaves.
pub(crate) fn begin(port: u16, path: &str, body: &Value) -> Result<BufReader<TcpStream>> {
    write(port, &request(port, "POST", path, body))
}

fn request(port: u16, method: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn write(port: u16, request: &str) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))
        .with_context(|| format!("failed to connect to port {port}"))?;
    stream.set_read_timeout(Some(SILENCE_MAX)).context("failed to bound the wait for answers")?;
    stream.write_all(request.as_bytes()).context("failed to send a request")?;
    Ok(BufReader::new(stream))
}

fn send(port: u16, request: &str) -> Result<BufReader<TcpStream>> {
    let mut answer = write(port, request)?;
    let status = read_head(&mut answer)?;
    if status != 200 {
        let mut body = String::new();
        answer.read_to_string(&mut body).context("failed to read an answer")?;
        bail!("failed to get an answer: the server said {status}: {body}");
    }
    Ok(answer)
}

/// Reads up to the blank line before the body; returns the status.
fn read_head(answer: &mut impl BufRead) -> Result<u16> {
    let mut line = String::new();
    answer.read_line(&mut line).context("failed to read a status line")?;
    let status = line.split(' ').nth(1).and_then(|word| word.trim().parse().ok());
    let status = status.with_context(|| format!("failed to parse the status line `{line}`"))?;
    while !line.trim_end().is_empty() {
        line.clear();
        answer.read_line(&mut line).context("failed to read a header")?;
    }
    Ok(status)
}

/// The events of one answer, as they come.
#[derive(Debug)]
pub(crate) struct Events<R = BufReader<TcpStream>> {
    answer: R,
}

impl<R: BufRead> Events<R> {
    /// The JSON of the next event, `None` after the last.
    fn next_event(&mut self) -> Result<Option<Value>> {
        loop {
            let mut line = String::new();
            let count = self.answer.read_line(&mut line).context("failed to read an event")?;
            if count == 0 {
                bail!("failed to read an event: the stream ended without `[DONE]`");
            }
            match line.trim_end().strip_prefix("data:").map(str::trim_start) {
                None => {}
                Some("[DONE]") => return Ok(None),
                Some(json) => {
                    let event = serde_json::from_str(json);
                    return event.map(Some).with_context(|| format!("failed to parse `{json}`"));
                }
            }
        }
    }

    /// The next piece of generated text, `None` after the last.
    pub(crate) fn next_text(&mut self) -> Result<Option<String>> {
        while let Some(event) = self.next_event()? {
            if let Some(error) = event.get("error") {
                bail!("failed to generate: {error}");
            }
            match event["choices"][0]["delta"]["content"].as_str() {
                None | Some("") => {}
                Some(text) => return Ok(Some(text.to_owned())),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(answer: &str) -> Result<Vec<String>> {
        let mut events = Events { answer: answer.as_bytes() };
        let mut texts = Vec::new();
        while let Some(text) = events.next_text()? {
            texts.push(text);
        }
        Ok(texts)
    }

    #[test]
    fn texts_come_in_order_and_what_holds_none_is_passed_over() {
        let answer = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n: ping\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n\
            data:{\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
            data: {\"choices\":[]}\n\ndata: [DONE]\n\ndata: nothing after it is read\n";
        assert_eq!(texts(answer).unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_stream_that_breaks_off_is_an_error() {
        assert!(texts("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n").is_err());
        assert!(texts("data: {\"choi\n\n").is_err());
    }

    #[test]
    fn an_error_event_is_an_error() {
        let message = texts("data: {\"error\":{\"message\":\"worn out\"}}\n\n").unwrap_err();
        assert!(message.to_string().contains("worn out"));
    }

    #[test]
    fn the_head_is_read_up_to_the_body_and_no_further() {
        let mut answer = "HTTP/1.0 404 Not Found\r\nA: b\r\n\r\nbody".as_bytes();
        assert_eq!(read_head(&mut answer).unwrap(), 404);
        assert_eq!(answer, b"body");
        assert!(read_head(&mut "nonsense\r\n\r\n".as_bytes()).is_err());
        assert!(read_head(&mut "".as_bytes()).is_err());
    }
}
