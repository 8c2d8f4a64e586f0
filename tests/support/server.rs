//! A real server process, and a client that speaks to it over loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::demo;

/// A `slipstream serve` on a free port, of the demo model mostly. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts it with further `flags` and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it ends before it is ready.
    pub fn start(flags: &[&str]) -> Self {
        Self::of(&demo::model_directory(), flags)
    }

    /// The same for the model in `directory`.
    ///
    /// # Panics
    /// When it ends before it is ready.
    pub fn of(directory: &Path, flags: &[&str]) -> Self {
        Self::spawn(serve_model(directory).args(flags))
    }

    /// The same by a `slipstream serve` of any kind.
    ///
    /// # Panics
    /// When it ends before it is ready.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut lines = output.lines().map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.trim().strip_prefix("URL")?.trim().to_owned()));
        let url = url.expect("the server says its URL before it ends");
        // Whoever reads the output on keeps the server from a broken pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let address = url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
        Self { child, address }
    }

    /// `http://127.0.0.1:PORT/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Sends a request and returns the connection, its answer unread.
    pub fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        self.send_with("", method, path, body)
    }

    /// The same with further header lines.
    fn send_with(
        &self,
        headers: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        let (host, length) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             {headers}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("the server reads");
        BufReader::new(stream)
    }

    /// The status and the JSON of an answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        Self::answer(self.send(method, path, body))
    }

    /// The same for a request that a page of `origin` sends.
    pub fn ask_from(&self, origin: &str, method: &str, path: &str) -> (u16, Value) {
        Self::answer(self.send_with(&format!("Origin: {origin}\r\n"), method, path, ""))
    }

    fn answer(mut connection: BufReader<TcpStream>) -> (u16, Value) {
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the server answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a head has a status"), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// The statistics.
    pub fn stats(&self) -> Value {
        self.ask("GET", "/stats", "").1
    }

    /// The first statistics for which `holds`; it asks until then.
    pub fn stats_when(&self, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let stats = self.stats();
            if holds(&stats) {
                return stats;
            }
            // Leaves the processor to the server; nothing depends on the length.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to end, as a service manager does, and waits for that.
    pub fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.is_ok_and(|status| status.success()), "no signal reaches the server");
        self.child.wait().expect("the server ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `slipstream serve` of the demo model.
pub fn serve() -> Command {
    serve_model(&demo::model_directory())
}

/// `slipstream serve` of the model in `directory`.
pub fn serve_model(directory: &Path) -> Command {
    let mut command = Command::new(demo::binary());
    command.arg("serve").arg("--model").arg(directory);
    // No models of the machine that runs the test.
    command.env("SLIPSTREAM_MODELS", "/nonexistent/models").env("HF_HUB_CACHE", "/nonexistent/hub");
    command
}

/// Runs a command that is expected to end by itself.
///
/// # Panics
/// When it cannot be started.
pub fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the command starts")
}
