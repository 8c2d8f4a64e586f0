//! A hub on loopback with one model of one large file, which costs its process as little as can be.

use std::io::{BufRead, BufReader, Result as IoResult, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::stamp::hex;

/// Bytes that are sent over and over.
const BLOCK_BYTES: usize = 1 << 20;
/// What `git hash-object` says of `{}`.
const CONFIG_BLOB: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
/// The model's only commit.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Its large file.
pub(super) const WEIGHTS: &str = "model.safetensors";

/// The hub. It runs until the process ends.
#[derive(Debug)]
pub(super) struct Mirror {
    /// Its address.
    pub(super) endpoint: String,
}

struct Model {
    block: Vec<u8>,
    blocks: usize,
    digest: String,
}

impl Mirror {
    /// A hub whose model `bench/model` has `blocks` MiB of weights.
    pub(super) fn start(blocks: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("failed to listen on loopback")?;
        let address = listener.local_addr().context("failed to read the address listened on")?;
        let model = Arc::new(Model::new(blocks));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let model = model.clone();
                // A client that leaves ends its connection alone.
                thread::spawn(move || drop(serve(&stream, &model)));
            }
        });
        Ok(Self { endpoint: format!("http://{address}") })
    }

    /// The address of the weights.
    pub(super) fn weights_url(&self) -> String {
        format!("{}/bench/model/resolve/{COMMIT}/{WEIGHTS}", self.endpoint)
    }
}

impl Model {
    fn new(blocks: usize) -> Self {
        // A multiplicative sequence: nothing on the way could make less of it.
        let word = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let block: Vec<u8> = (0..BLOCK_BYTES / 8).flat_map(word).collect();
        let mut hash = Sha256::new();
        (0..blocks).for_each(|_| hash.update(&block));
        Self { block, blocks, digest: hex(&hash.finalize()) }
    }

    fn bytes(&self) -> usize {
        self.block.len() * self.blocks
    }

    fn tree(&self) -> Value {
        let lfs = json!({ "oid": self.digest, "size": self.bytes(), "pointerSize": 134 });
        json!([
            { "type": "file", "path": "config.json", "oid": CONFIG_BLOB, "size": 2 },
            { "type": "file", "path": WEIGHTS, "oid": COMMIT, "size": self.bytes(), "lfs": lfs },
        ])
    }
}

fn serve(stream: &TcpStream, model: &Model) -> IoResult<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        answer(stream, first.split(' ').nth(1).unwrap_or_default(), model)?;
    }
}

fn answer(mut stream: &TcpStream, target: &str, model: &Model) -> IoResult<()> {
    let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    let text = match target {
        _ if target.ends_with(WEIGHTS) => {
            stream.write_all(head(model.bytes()).as_bytes())?;
            return (0..model.blocks).try_for_each(|_| stream.write_all(&model.block));
        }
        _ if target.contains("/revision/") => {
            json!({ "id": "bench/model", "sha": COMMIT }).to_string()
        }
        _ if target.contains("/tree/") => model.tree().to_string(),
        _ => "{}".to_owned(),
    };
    stream.write_all(format!("{}{text}", head(text.len())).as_bytes())
}
