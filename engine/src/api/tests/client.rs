//! A small HTTP client that speaks to the server over loopback, one connection per request.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Answer {
    /// The body as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    /// All values of a header that may come often.
    pub(super) fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(move |(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Its server-sent events, comments left out.
    pub(super) fn events(&self) -> Vec<SentEvent> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{self:?}");
        assert!(self.body.ends_with("\n\n"), "the last event is torn: {self:?}");
        let blocks = self.body.split_terminator("\n\n").filter(|block| !block.starts_with(':'));
        blocks.map(SentEvent::read).collect()
    }

    /// The data of its server-sent events.
    pub(super) fn frames(&self) -> Vec<String> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{self:?}");
        let events = self.body.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
        events.map(|event| event.strip_prefix("data: ").expect(event).to_owned()).collect()
    }
}

/// One server-sent event.
#[derive(Debug, Clone)]
pub(super) struct SentEvent {
    pub(super) name: Option<String>,
    pub(super) data: String,
}

impl SentEvent {
    fn read(block: &str) -> Self {
        let (name, data) = match block.split_once('\n') {
            Some((name, data)) => {
                (Some(name.strip_prefix("event: ").expect(block).to_owned()), data)
            }
            None => (None, block),
        };
        Self { name, data: data.strip_prefix("data: ").expect(block).to_owned() }
    }
}

/// Where the server is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    pub(super) address: SocketAddr,
}

impl Client {
    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "", &body.to_string()).await
    }

    /// Any request; `headers` are whole lines, and one of them may replace `Host`.
    pub(super) async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.open(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        answer(&bytes)
    }

    /// The same with any body; the server may answer and hang up before it has read all of it.
    pub(super) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reads, mut writes) = stream.split();
        let mut bytes = Vec::new();
        let (_, read) = tokio::join!(writes.write_all(body), reads.read_to_end(&mut bytes));
        read.unwrap();
        answer(&bytes)
    }

    /// Sends a request and leaves its answer on the connection.
    pub(super) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let host =
            if headers.to_ascii_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    }
}

/// Reads until `text` has come.
pub(super) async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let count = stream.read_buf(&mut seen).await.unwrap();
        assert!(count > 0, "the answer ended before `{text}`: {}", String::from_utf8_lossy(&seen));
    }
}

fn answer(bytes: &[u8]) -> Answer {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { joined(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

/// A chunked body's content; panics unless it ends as it should.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n").expect("a chunk has a size");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&rest[..size]);
        chunks = rest[size..].strip_prefix("\r\n").expect("a chunk ends in a line break");
    }
}
