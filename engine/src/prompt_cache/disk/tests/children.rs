//! Processes of their own that work on a folder: this test binary, run again for one test that only does
//! what its environment asks for.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::scripted::{Fate, Kind, ScriptedFiles};
use super::*;

const TASK: &str = "SLIPSTREAM_DISK_TASK";
const MARK: &str = "child: ";

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) struct Task {
    pub folder: PathBuf,
    pub identity: String,
    pub max_bytes: u64,
    pub seed: u64,
    pub entries: u32,
    /// The operation at which it hangs, and how far into it.
    pub hangs_at: Option<(usize, usize)>,
}

/// A child at work; it is killed when this is dropped.
pub(super) struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// Tells the parent something.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{text}").unwrap();
    out.flush().unwrap();
}

impl Worker {
    pub(super) fn start(task: &Task) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "prompt_cache::disk::tests::children::works", "--ignored"])
            .args(["--nocapture", "--test-threads=1"])
            .env(TASK, serde_json::to_string(task).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next thing that the child says; none when it has ended.
    pub(super) fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(said) = line.trim_end().strip_prefix(MARK) {
                return Some(said.to_owned());
            }
        }
    }

    /// Ends the child as nothing can be caught or cleaned up.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the child, which must end well.
    pub(super) fn join(mut self) {
        let mut errors = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut errors).unwrap();
        assert!(self.child.wait().unwrap().success(), "{errors}");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "other tests run it in processes of their own"]
fn works() {
    let task: Task = serde_json::from_str(&std::env::var(TASK).unwrap()).unwrap();
    let config = DiskConfig { max_bytes: task.max_bytes, ..config(&task.folder) };
    let (mut operation, hangs_at) = (0, task.hangs_at);
    let files = ScriptedFiles::new(move |kind: Kind, _: &Path| {
        operation += 1;
        match (hangs_at, kind) {
            (Some((at, _)), _) if at != operation => Fate::Done,
            (Some((_, bytes)), Kind::Write(all)) => Fate::Hangs(bytes % (all + 1)),
            (Some(_), _) => Fate::Hangs(0),
            (None, _) => Fate::Done,
        }
    });
    let clock = Clock::monotonic();
    let mut tier = DiskTier::open_with(config, &task.identity, clock, files).unwrap();
    let mut random = StdRng::seed_from_u64(task.seed);
    let mut written = 0;
    for entry in 0..task.entries {
        written += work(&mut tier, &mut random, &task, entry);
    }
    let stats = tier.stats();
    assert_eq!((stats.dropped, &stats.read_only), (0, &None), "{stats:?}");
    say(&format!("wrote {written}"));
}

/// Saves one entry and does something with another; says what was saved and how many bytes that took.
fn work(tier: &mut DiskTier, random: &mut StdRng, task: &Task, entry: u32) -> u64 {
    let tokens = [task.seed as u32, entry];
    let saved_before = tier.stats().saved;
    let id = save(tier, &tokens).unwrap();
    // It would wait for ever where the writer hangs, and the parent kills it then.
    while !tier.flush(PATIENCE) {}
    let saved = tier.stats().saved > saved_before;
    if saved {
        say(&format!("saved {id}"));
    }
    let ids: Vec<DiskId> = tier.entries().map(|entry| entry.id).collect();
    if let Some(id) = ids.get(random.random_range(0..ids.len().max(1))) {
        // Another process may have removed it; what can be opened is sound.
        if tier.restore(*id).is_ok() && tier.contains(*id) {
            check_open(tier, *id);
        }
    }
    if let Some(id) = ids.get(random.random_range(0..ids.len().max(1))) {
        let pinned = random.random_bool(0.25);
        say(&format!("pins {id}"));
        if tier.pin(*id, pinned) {
            while !tier.flush(PATIENCE) {}
            say(&format!("pinned {id} {pinned}"));
        }
    }
    if saved { file_bytes(&tokens) } else { 0 }
}

fn check_open(tier: &mut DiskTier, id: DiskId) {
    if let Ok(mut reader) = tier.restore(id) {
        let tokens = reader.manifest().tokens.clone();
        assert_eq!(read(&mut reader), (content(&tokens).1, None));
    }
}
