//! Fetching pinned wheels through pip, and checking them. A [`Wheel`] is named by its package and
//! by the bytes we expect; what arrives is trusted only after its SHA-256 matches, and is then
//! moved into place, so a file with its final name is always whole.

use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::process::Task;
use crate::stamp::{create_folder, fresh_partial, hex, remove_if_there, rename};

/// One file of a package registry, known down to its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wheel {
    /// What pip is asked for: `name==version`.
    pub(crate) requirement: &'static str,
    /// The name under which the registry has it.
    pub(crate) file: &'static str,
    pub(crate) size_bytes: u64,
    /// Lower-case hexadecimal.
    pub(crate) sha256: &'static str,
}

/// The wheel in `folder`, fetched if it is not there yet.
pub(crate) fn fetch(wheel: &Wheel, folder: &Path) -> Result<PathBuf> {
    let kept = folder.join(wheel.file);
    if kept.is_file() && sha256_of_file(&kept)? == wheel.sha256 {
        return Ok(kept);
    }
    create_folder(folder)?;
    let partial = fresh_partial(&kept)?;
    download(wheel, &partial)?;
    let arrived = partial.join(wheel.file);
    verify(&arrived, wheel.sha256)?;
    remove_if_there(&kept)?;
    rename(&arrived, &kept)?;
    remove_if_there(&partial)?;
    Ok(kept)
}

/// Lets pip write into `folder`, and shows how far it is. Pip keeps the growing file somewhere
/// below its temporary folder, so that is put inside `folder` and watched.
fn download(wheel: &Wheel, folder: &Path) -> Result<()> {
    let growing = folder.join("growing");
    create_folder(&growing)?;
    let pip = Task::new(format!("fetch `{}`", wheel.requirement), "python3")
        .args(["-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"])
        .args(["--progress-bar", "off", "--no-cache-dir", "--dest"])
        .arg(folder)
        .arg(wheel.requirement)
        .env("TMPDIR", &growing)
        .hint("check the network and that pip reaches its registry, then run the command again");
    let mut progress = Progress::new(wheel.requirement, wheel.size_bytes);
    let mut running = pip.start_logged(&folder.join("pip.log"))?;
    while !running.ended()? {
        std::thread::sleep(Duration::from_millis(100));
        progress.reach(largest_file_bytes(&growing));
    }
    running.finish()?;
    progress.finish();
    Ok(())
}

/// Size of the largest file below `folder`. Files may come and go meanwhile.
fn largest_file_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        let is_folder = metadata.is_dir();
        Some(if is_folder { largest_file_bytes(&entry.path()) } else { metadata.len() })
    });
    sizes.max().unwrap_or(0)
}

/// A bar on a terminal; elsewhere a line for every tenth of the way.
#[derive(Debug)]
struct Progress {
    bar: Option<ProgressBar>,
    name: String,
    size_bytes: u64,
    tenths_said: u64,
}

impl Progress {
    fn new(name: &str, size_bytes: u64) -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        Self {
            bar: on_terminal.then(|| bar(name, size_bytes)),
            name: name.to_owned(),
            size_bytes,
            tenths_said: 0,
        }
    }

    fn reach(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes.min(self.size_bytes));
            return;
        }
        let tenths = tenths(bytes, self.size_bytes);
        if tenths > self.tenths_said {
            self.tenths_said = tenths;
            eprintln!("    {}: {}0 % of {} MB", self.name, tenths, self.size_bytes / 1_000_000);
        }
    }

    fn finish(&mut self) {
        self.reach(self.size_bytes);
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

fn bar(name: &str, size_bytes: u64) -> ProgressBar {
    let template = "    {msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::new(size_bytes).with_style(style).with_message(name.to_owned())
}

fn tenths(bytes: u64, size_bytes: u64) -> u64 {
    (bytes.min(size_bytes) * 10).checked_div(size_bytes).unwrap_or(10)
}

/// Fails unless the file has this SHA-256.
pub(crate) fn verify(path: &Path, sha256: &str) -> Result<()> {
    if !path.is_file() {
        bail!("failed to verify `{}`: no such file arrived", path.display());
    }
    let found = sha256_of_file(path)?;
    if found != sha256 {
        bail!(
            "failed to verify `{}`: its SHA-256 is {found}, expected {sha256}\n\
             what to do: run the command again; if it fails the same way, do not use the file",
            path.display()
        );
    }
    Ok(())
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let context = || format!("failed to read `{}`", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).with_context(context)?;
        if count == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..count]);
    }
}

/// Unpacks a wheel (a zip file) into an empty folder.
pub(crate) fn unpack(wheel: &Path, folder: &Path) -> Result<()> {
    let task = Task::new(format!("unpack `{}`", wheel.display()), "python3");
    let task = task.args(["-m", "zipfile", "--extract"]).arg(wheel).arg(folder);
    task.hint("check that the disk has room, then run the command again").capture()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_hash_is_sha256() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("abc");
        fs::write(&path, "abc").unwrap();
        assert_eq!(sha256_of_file(&path).unwrap(), ABC);
        verify(&path, ABC).unwrap();
    }

    #[test]
    fn a_file_with_other_bytes_is_refused_with_both_hashes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        fs::write(&path, "").unwrap();
        let message = verify(&path, ABC).unwrap_err().to_string();
        assert!(message.contains(EMPTY) && message.contains(ABC), "{message}");
    }

    #[test]
    fn a_file_that_never_arrived_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(verify(&directory.path().join("nothing"), ABC).is_err());
    }

    #[test]
    fn a_kept_wheel_is_not_fetched_again() {
        let directory = tempfile::tempdir().unwrap();
        // No such package exists, so any attempt to fetch it would fail.
        let wheel = Wheel { requirement: "-", file: "a.whl", size_bytes: 3, sha256: ABC };
        fs::write(directory.path().join("a.whl"), "abc").unwrap();
        let path = fetch(&wheel, directory.path()).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "abc");
    }

    #[test]
    fn tenths_are_counted_up_to_ten_and_never_past() {
        let counted: Vec<u64> = [0, 99, 100, 999, 1000, 5000].map(|n| tenths(n, 1000)).to_vec();
        assert_eq!(counted, [0, 0, 1, 9, 10, 10]);
        assert_eq!(tenths(0, 0), 10);
    }

    #[test]
    fn the_largest_file_is_found_in_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        fs::write(directory.path().join("small"), "1").unwrap();
        fs::write(directory.path().join("a/b/large"), "12345").unwrap();
        assert_eq!(largest_file_bytes(directory.path()), 5);
        assert_eq!(largest_file_bytes(&directory.path().join("gone")), 0);
    }
}
