//! The clients of a scripted server: a process of its own, so that its processor time is not the server's.
//!
//! It prints one JSON object. *Crowd*: so many streams at once, each held against its script. *Probes*: one
//! request after the other beside a crowd that goes on, each timed up to its first text.

use serde_json::{Value, json};
use slipstream_engine::clock::Clock;
use slipstream_engine::error::{Code, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::script::Part;

/// What the process of the clients takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The server's port.
    #[arg(long)]
    port: u16,
    /// Streams at once.
    #[arg(long)]
    streams: u64,
    /// Words of each answer of the crowd.
    #[arg(long)]
    words: u64,
    /// Requests that are timed beside the crowd; the crowd is then left.
    #[arg(long, default_value_t = 0)]
    probes: u64,
}

/// Every byte of a word could be a token, and no word is longer.
const TOKENS_OF_A_WORD_MAX: u64 = 32;

/// Runs the clients and prints what they heard.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let told = runtime.block_on(async {
        match arguments.probes {
            0 => crowd(arguments).await,
            _ => probes(arguments).await,
        }
    })?;
    println!("{told}");
    Ok(())
}

/// Every stream to its end, held against its script.
async fn crowd(arguments: &Arguments) -> Result<Value> {
    let clock = Clock::monotonic();
    let mut streams = JoinSet::new();
    for client in 0..arguments.streams {
        let (port, part) = (arguments.port, Part { client, words: arguments.words });
        streams.spawn(async move {
            Ok::<_, Error>((part, Stream::open(port, part).await?.text().await?))
        });
    }
    let mut wrong = Vec::new();
    while let Some(ended) = streams.join_next().await {
        match ended.map_err(|panic| broken(panic.to_string()))? {
            Ok((part, heard)) if heard == part.text() => {}
            Ok((part, heard)) => wrong.push(json!({"client": part.client, "heard": heard})),
            Err(error) => wrong.push(json!({"error": error.to_string()})),
        }
    }
    let (seconds, example) = (clock.now().as_secs_f64(), wrong.first());
    let (streams, wrong_streams) = (arguments.streams, wrong.len());
    Ok(json!({
        "streams": streams, "wrong": wrong_streams, "example": example, "seconds": seconds,
    }))
}

/// Requests of one word, one after the other, beside all streams but one.
async fn probes(arguments: &Arguments) -> Result<Value> {
    let (began, mut beginnings) = mpsc::unbounded_channel();
    let mut beside = JoinSet::new();
    for client in 1..arguments.streams {
        let (port, part) = (arguments.port, Part { client, words: arguments.words });
        let began = began.clone();
        beside.spawn(async move {
            let mut stream = Stream::open(port, part).await?;
            stream.next().await?;
            // Nobody listens any more only if the measurement has failed already.
            let _heard = began.send(());
            stream.text().await
        });
    }
    drop(began);
    for _ in 1..arguments.streams {
        let heard = beginnings.recv().await;
        heard.ok_or_else(|| broken("a stream never began".to_owned()))?;
    }
    let (mut first_text_ms, mut engine_ms) = (Vec::new(), Vec::new());
    for number in 0..arguments.probes {
        let part = Part { client: arguments.streams + number, words: 1 };
        let (first, engine) = probe(arguments.port, part).await?;
        first_text_ms.push(first);
        engine_ms.push(engine);
    }
    match beside.try_join_next() {
        Some(ended) => Err(broken(format!("a stream beside the probes ended: {ended:?}"))),
        None => Ok(json!({"first_text_ms": first_text_ms, "engine_ms": engine_ms})),
    }
}

/// The milliseconds to the first text of a new request, and those that its row waited and prefilled.
async fn probe(port: u16, part: Part) -> Result<(f64, f64)> {
    let clock = Clock::monotonic();
    let mut stream = Stream::open(port, part).await?;
    stream.next().await?;
    let first_text_ms = clock.now().as_secs_f64() * 1e3;
    stream.text().await?;
    let told = |name: &str| stream.timings[name].as_f64();
    let engine_ms =
        told("queue_ms").zip(told("prefill_ms")).map(|(queue, prefill)| queue + prefill);
    let engine_ms = engine_ms.ok_or_else(|| broken(format!("no timings: {}", stream.timings)))?;
    Ok((first_text_ms, engine_ms))
}

/// The answer to one request.
struct Stream {
    lines: Lines<BufReader<TcpStream>>,
    /// What the last chunks said of the time it took.
    timings: Value,
}

impl Stream {
    /// Sends a request for `part`, and reads up to its answer.
    async fn open(port: u16, part: Part) -> Result<Self> {
        let body = json!({
            "messages": [{"role": "user", "content": "Recite."}], "seed": part.seed(),
            "max_tokens": part.words * TOKENS_OF_A_WORD_MAX,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let body = body.to_string();
        // Of this version answers end with the connection, and events are plain lines.
        let head = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
        connection.set_nodelay(true)?;
        connection.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut lines = BufReader::new(connection).lines();
        let status = lines.next_line().await?.unwrap_or_default();
        if status.split(' ').nth(1) != Some("200") {
            return Err(broken(format!("the server said `{status}`")));
        }
        Ok(Self { lines, timings: Value::Null })
    }

    /// The next piece of the answer; `None` after the last.
    async fn next(&mut self) -> Result<Option<String>> {
        while let Some(line) = self.lines.next_line().await? {
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(None);
            }
            let event: Value =
                serde_json::from_str(data).map_err(|error| broken(error.to_string()))?;
            if !event["error"].is_null() {
                return Err(broken(event["error"].to_string()));
            }
            if !event["timings"].is_null() {
                self.timings = event["timings"].clone();
            }
            match event["choices"][0]["delta"]["content"].as_str() {
                None | Some("") => {}
                Some(piece) => return Ok(Some(piece.to_owned())),
            }
        }
        Err(broken("a stream broke off".to_owned()))
    }

    /// All of the answer that is still to come.
    async fn text(&mut self) -> Result<String> {
        let mut heard = String::new();
        while let Some(piece) = self.next().await? {
            heard.push_str(&piece);
        }
        Ok(heard)
    }
}

fn broken(what: String) -> Error {
    Error::new(Code::Io, what).while_doing("failed to measure the scripted server")
}
