//! A hub that is played by a script: the API, the files and a CDN on another port, over plain sockets, so that an
//! answer can be cut, bent or refused at any byte.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::random::Random;

/// The commit at which a repository is listed first.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of a repository.
#[derive(Debug, Clone)]
pub struct HubFile {
    /// As it is listed.
    pub path: String,
    /// What it holds.
    pub content: Arc<Vec<u8>>,
    /// Whether it is kept apart from git, listed by its SHA-256 and served by the CDN.
    pub is_large: bool,
}

impl HubFile {
    /// A file in git.
    pub fn small(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.to_owned(), content: Arc::new(content.into()), is_large: false }
    }

    /// A file in LFS.
    pub fn large(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { is_large: true, ..Self::small(path, content) }
    }

    /// What the hub calls its content, in hexadecimal digits.
    pub fn digest(&self) -> String {
        let sha256 = || Sha256::digest(&*self.content).to_vec();
        let blob = || {
            let head = format!("blob {}\0", self.content.len());
            Sha1::new_with_prefix(head).chain_update(&*self.content).finalize().to_vec()
        };
        let digest = if self.is_large { sha256() } else { blob() };
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn listed(&self) -> Value {
        let (digest, bytes) = (self.digest(), self.content.len());
        if self.is_large {
            let lfs = json!({ "oid": digest, "size": bytes, "pointerSize": 134 });
            return json!({ "type": "file", "oid": "0".repeat(40), "size": bytes, "path": self.path, "lfs": lfs });
        }
        json!({ "type": "file", "oid": digest, "size": bytes, "path": self.path })
    }
}

/// What goes wrong with one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A status instead of the answer, with these further lines of its head.
    Status(u16, Vec<String>),
    /// The connection ends after so many bytes of the body.
    Drop {
        /// Bytes that still arrive.
        after_bytes: usize,
    },
    /// Nothing at all is answered.
    HangUp,
    /// The whole file, whatever range was asked for.
    NoRange,
    /// The range is of another version: its tag differs, and `If-Range` is not looked at.
    OtherTag,
    /// The head promises this many bytes more than there are, or fewer.
    Length(i64),
    /// One bit of the body is another.
    Flip {
        /// In which byte of what is sent.
        at_byte: usize,
    },
    /// The range starts elsewhere than was asked for.
    WrongRange,
    /// The range cannot be served.
    RangeRefused,
    /// After so many bytes nothing more comes until the client leaves.
    Hold {
        /// Bytes that still arrive.
        after_bytes: usize,
    },
}

/// A request that was heard.
#[derive(Debug, Clone)]
pub struct Heard {
    /// Whether it came to the CDN rather than to the hub.
    pub at_cdn: bool,
    /// The path with what follows `?`.
    pub target: String,
    /// Its head, names in lower case.
    pub headers: HashMap<String, String>,
}

/// What the hub plays; it may be changed while it runs.
#[derive(Debug, Default)]
pub struct Script {
    /// The files of `owner/name`.
    pub files: Vec<HubFile>,
    /// The commit that `main` stands for.
    pub commit: String,
    /// What the API says `id` is; `owner/name` without one.
    pub id: Option<String>,
    /// The token without which nothing is answered.
    pub wanted_token: Option<String>,
    /// The value of `X-Error-Code` when the token is missing or wrong.
    pub error_code: &'static str,
    /// Files of one page of a list; 0 is all.
    pub page_files: usize,
    /// Where a list says that it goes on, instead of where it does.
    pub next_page: Option<String>,
    /// Faults of the answers to come for files, in order.
    pub faults: Vec<Fault>,
    /// Faults of the answers to come of the API, in order.
    pub api_faults: Vec<Fault>,
    /// What the API answers to a search.
    pub hits: Value,
    /// What was heard.
    pub heard: Vec<Heard>,
    /// Faults that files get once `faults` are used up: about so many of a hundred answers.
    pub chaos: Option<(Random, u64)>,
}

/// A running hub. It ends when this is dropped.
#[derive(Debug)]
pub struct Hub {
    hub_port: u16,
    cdn_port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    cdn_port: u16,
    is_over: AtomicBool,
    file_bytes: AtomicU64,
}

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no thread of the hub panics while it holds the script")
    }
}

impl Hub {
    /// A hub with the repository `owner/name` of these files.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(files: Vec<HubFile>) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (hub, cdn) = (listen(), listen());
        let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
        let (hub_port, cdn_port) = (port(&hub), port(&cdn));
        let script = Script { files, commit: COMMIT.to_owned(), ..Script::default() };
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            cdn_port,
            is_over: AtomicBool::new(false),
            file_bytes: AtomicU64::new(0),
        });
        for (listener, at_cdn) in [(hub, false), (cdn, true)] {
            let shared = shared.clone();
            thread::spawn(move || accept(&listener, at_cdn, &shared));
        }
        Self { hub_port, cdn_port, shared }
    }

    /// Its address.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.hub_port)
    }

    /// What it plays.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script()
    }

    /// Bytes of files that were sent so far.
    pub fn file_bytes(&self) -> u64 {
        self.shared.file_bytes.load(Ordering::SeqCst)
    }

    /// What was heard since this was asked last.
    pub fn take_heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.script().heard)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes those who wait for a client.
        for port in [self.hub_port, self.cdn_port] {
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
    }
}

fn accept(listener: &TcpListener, at_cdn: bool, shared: &Arc<Shared>) {
    for stream in listener.incoming().map_while(Result::ok) {
        if shared.is_over.load(Ordering::SeqCst) {
            return;
        }
        let shared = shared.clone();
        // A client that leaves ends its connection alone.
        thread::spawn(move || drop(serve(&stream, at_cdn, &shared)));
    }
}

fn serve(stream: &TcpStream, at_cdn: bool, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(heard) = read_head(&mut reader, at_cdn)? {
        shared.script().heard.push(heard.clone());
        if !answer(stream, &heard, shared)? {
            return stream.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

fn read_head(reader: &mut impl BufRead, at_cdn: bool) -> std::io::Result<Option<Heard>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return Ok(Some(Heard { at_cdn, target, headers }));
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
}

/// Answers a request; false when the connection is to end.
fn answer(stream: &TcpStream, heard: &Heard, shared: &Shared) -> std::io::Result<bool> {
    if heard.at_cdn {
        return answer_file(stream, heard, shared, heard.target.trim_start_matches('/'));
    }
    let script = shared.script();
    if let Some(token) = &script.wanted_token
        && heard.headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        let (status, code) = (
            if heard.headers.contains_key("authorization") { 403 } else { 401 },
            script.error_code,
        );
        drop(script);
        return send(stream, status, &[format!("X-Error-Code: {code}")], b"{}", None);
    }
    drop(script);
    match heard.target.strip_prefix("/api/models") {
        Some(target) => answer_api(stream, shared, target),
        None => answer_resolve(stream, heard, shared),
    }
}

fn answer_api(stream: &TcpStream, shared: &Shared, target: &str) -> std::io::Result<bool> {
    let mut script = shared.script();
    let fault = (!script.api_faults.is_empty()).then(|| script.api_faults.remove(0));
    let (body, link) = if target.starts_with('?') {
        (script.hits.clone(), None)
    } else if target.contains("/revision/") {
        let id = script.id.clone().unwrap_or_else(|| "owner/name".to_owned());
        (json!({ "id": id, "sha": script.commit, "gated": false }), None)
    } else {
        page(&script, target)
    };
    drop(script);
    send(stream, 200, link.as_slice(), body.to_string().as_bytes(), fault.as_ref())
}

/// A page of the list of files, and the line of the head that says where it goes on.
fn page(script: &Script, target: &str) -> (Value, Option<String>) {
    let start: usize =
        target.split_once("cursor=").and_then(|(_, cursor)| cursor.parse().ok()).unwrap_or(0);
    let files = if script.page_files == 0 { usize::MAX } else { script.page_files };
    let end = script.files.len().min(start.saturating_add(files));
    let path = target.split('?').next().unwrap_or_default();
    let next = format!("/api/models{path}?recursive=true&cursor={end}");
    let next = script.next_page.clone().unwrap_or(next);
    let link = (end < script.files.len()).then(|| format!("Link: <{next}>; rel=\"next\""));
    (script.files[start..end].iter().map(HubFile::listed).collect(), link)
}

fn answer_resolve(stream: &TcpStream, heard: &Heard, shared: &Shared) -> std::io::Result<bool> {
    let path = heard.target.splitn(6, '/').nth(5).unwrap_or_default();
    let script = shared.script();
    let is_large = script.files.iter().any(|file| file.path == path && file.is_large);
    drop(script);
    if !is_large {
        return answer_file(stream, heard, shared, path);
    }
    let location = format!("Location: http://localhost:{}/{path}", shared.cdn_port);
    send(stream, 302, &[location], b"", None)
}

fn answer_file(
    stream: &TcpStream,
    heard: &Heard,
    shared: &Shared,
    path: &str,
) -> std::io::Result<bool> {
    let mut script = shared.script();
    let Some(file) = script.files.iter().find(|file| file.path == path).cloned() else {
        drop(script);
        return send(stream, 404, &["X-Error-Code: EntryNotFound".to_owned()], b"", None);
    };
    let fault = next_fault(&mut script, file.content.len());
    drop(script);
    let tag = format!("\"{}\"", file.digest());
    let total = file.content.len();
    let asked = heard
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let fits = heard.headers.get("if-range").is_none_or(|wanted| *wanted == tag);
    let start = asked.filter(|start| *start < total && fits && fault != Some(Fault::NoRange));
    if fault == Some(Fault::RangeRefused) && asked.is_some() {
        return send(stream, 416, &[format!("Content-Range: bytes */{total}")], b"", None);
    }
    let (status, mut head, body) = match start {
        Some(start) => {
            let told = if fault == Some(Fault::WrongRange) { start / 2 } else { start };
            let range = format!("Content-Range: bytes {told}-{}/{total}", total - 1);
            (206, vec![range], &file.content[start..])
        }
        None => (200, Vec::new(), &file.content[..]),
    };
    head.push(match fault {
        Some(Fault::OtherTag) => "ETag: \"another\"".to_owned(),
        _ => format!("ETag: {tag}"),
    });
    let sent_bytes = match fault {
        Some(Fault::Status(..) | Fault::HangUp) => 0,
        Some(Fault::Drop { after_bytes } | Fault::Hold { after_bytes }) => {
            body.len().min(after_bytes)
        }
        _ => body.len(),
    };
    shared.file_bytes.fetch_add(sent_bytes as u64, Ordering::SeqCst);
    send(stream, status, &head, body, fault.as_ref())
}

fn next_fault(script: &mut Script, bytes: usize) -> Option<Fault> {
    if !script.faults.is_empty() {
        return Some(script.faults.remove(0));
    }
    let (random, percent) = script.chaos.as_mut()?;
    (random.between(1, 100) <= *percent).then(|| any_fault(random, bytes))
}

fn any_fault(random: &mut Random, bytes: usize) -> Fault {
    let at = random.size(0, bytes);
    match random.between(0, 9) {
        0 => Fault::Status(503, Vec::new()),
        1 => Fault::Status(429, vec!["Retry-After: 0".to_owned()]),
        2 => Fault::HangUp,
        3 => Fault::NoRange,
        4 => Fault::OtherTag,
        5 => Fault::Length(*random.pick(&[-1, 1, 1_000])),
        6 => Fault::WrongRange,
        7 => Fault::RangeRefused,
        _ => Fault::Drop { after_bytes: at },
    }
}

/// Sends an answer with what is wrong about it; false when the connection is to end.
fn send(
    mut stream: &TcpStream,
    status: u16,
    lines: &[String],
    body: &[u8],
    fault: Option<&Fault>,
) -> std::io::Result<bool> {
    let (status, lines, mut body) = match fault {
        Some(Fault::HangUp) => return Ok(false),
        Some(Fault::Status(status, lines)) => (*status, &lines[..], Vec::new()),
        _ => (status, lines, body.to_vec()),
    };
    let told_bytes = match fault {
        Some(Fault::Length(more)) => body.len().saturating_add_signed(*more as isize),
        _ => body.len(),
    };
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {told_bytes}\r\n");
    for line in lines {
        // Writing to a string cannot fail.
        let _ = write!(head, "{line}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    match fault {
        Some(Fault::Drop { after_bytes }) => body.truncate(*after_bytes),
        Some(Fault::Flip { at_byte }) => {
            let place = at_byte % body.len().max(1);
            body.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= 1);
        }
        Some(Fault::Hold { after_bytes }) => {
            body.truncate(*after_bytes);
            stream.write_all(&body)?;
            // Ends when the client does.
            let _ = stream.read(&mut [0]);
            return Ok(false);
        }
        _ => {}
    }
    // What is longer than its head says could be taken for another answer.
    body.truncate(told_bytes);
    let is_whole = body.len() == told_bytes;
    stream.write_all(&body)?;
    Ok(is_whole)
}
