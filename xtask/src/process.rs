//! Running other programs. A [`Task`] is one command together with the words to say when it
//! fails: what was attempted, what came back (exit status and the last lines of output) and what
//! to do about it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, anyhow};

/// Lines of a failed command's output that are repeated in the error.
const TAIL_LINES: usize = 20;

/// One command to run, and how to explain its failure.
#[derive(Debug)]
pub(crate) struct Task {
    attempt: String,
    hint: Option<String>,
    command: Command,
    shown: String,
}

impl Task {
    /// `attempt` completes the sentence "failed to ...".
    pub(crate) fn new(attempt: impl Into<String>, program: impl AsRef<OsStr>) -> Self {
        let shown = program.as_ref().to_string_lossy().into_owned();
        Self { attempt: attempt.into(), hint: None, command: Command::new(program), shown }
    }

    /// Cargo itself: the one that runs us, so that the toolchain is the same.
    pub(crate) fn cargo(attempt: impl Into<String>) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut task = Self::new(attempt, cargo);
        "cargo".clone_into(&mut task.shown);
        task
    }

    pub(crate) fn args<I: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = I>) -> Self {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    pub(crate) fn arg(self, arg: impl AsRef<OsStr>) -> Self {
        self.args([arg])
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// What a person should do when this fails.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The command line, for headings.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Hands over the bare command, for callers that keep the child or replace this process.
    pub(crate) fn into_command(self) -> Command {
        self.command
    }

    /// Runs with our own terminal; what the command prints is seen as it comes.
    pub(crate) fn stream(mut self) -> Result<()> {
        let status = self.command.stdin(Stdio::null()).status();
        let status = status.with_context(|| self.not_started())?;
        self.judge(status, "")
    }

    /// Runs quietly and returns what the command wrote to stdout.
    pub(crate) fn capture(mut self) -> Result<String> {
        let output = self.command.stdin(Stdio::null()).output();
        let output = output.with_context(|| self.not_started())?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = format!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
        self.judge(output.status, &said)?;
        Ok(stdout)
    }

    /// Runs with stdout and stderr in the file `log`, whose end is quoted on failure.
    pub(crate) fn log_to(mut self, log: &Path) -> Result<()> {
        let file = File::create(log)
            .with_context(|| format!("failed to create the log `{}`", log.display()))?;
        let both = file.try_clone().context("failed to share the log between two streams")?;
        let status = self.command.stdin(Stdio::null()).stdout(file).stderr(both).status();
        let status = status.with_context(|| self.not_started())?;
        let said = std::fs::read(log).unwrap_or_default();
        self.judge(status, &String::from_utf8_lossy(&said))
    }

    /// Starts quietly and returns a child whose end [`Running::finish`] judges.
    pub(crate) fn start_logged(mut self, log: &Path) -> Result<Running> {
        let file = File::create(log)
            .with_context(|| format!("failed to create the log `{}`", log.display()))?;
        let both = file.try_clone().context("failed to share the log between two streams")?;
        let child = self.command.stdin(Stdio::null()).stdout(file).stderr(both).spawn();
        let child = child.with_context(|| self.not_started())?;
        Ok(Running { task: self, child, log: log.to_owned() })
    }

    fn not_started(&self) -> String {
        with_hint(
            format!("failed to {}: could not start `{}`", self.attempt, self.shown),
            self.hint.as_deref(),
        )
    }

    fn judge(&self, status: ExitStatus, said: &str) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        Err(anyhow!(failure(&self.attempt, &self.shown, status, said, self.hint.as_deref())))
    }
}

/// A command that runs beside us.
#[derive(Debug)]
pub(crate) struct Running {
    task: Task,
    child: std::process::Child,
    log: PathBuf,
}

impl Running {
    /// True once the command has ended.
    pub(crate) fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("failed to ask whether a command has ended")?.is_some())
    }

    /// Waits for the end; an error quotes the end of the log.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.child.wait().context("failed to wait for a command")?;
        let said = std::fs::read(&self.log).unwrap_or_default();
        self.task.judge(status, &String::from_utf8_lossy(&said))
    }
}

fn failure(
    attempt: &str,
    shown: &str,
    status: ExitStatus,
    said: &str,
    hint: Option<&str>,
) -> String {
    let mut message = format!("failed to {attempt}: `{shown}` ended with {status}");
    let tail = tail(said);
    if !tail.is_empty() {
        message.push_str("\nit said last:\n");
        message.push_str(&tail);
    }
    with_hint(message, hint)
}

fn with_hint(mut message: String, hint: Option<&str>) -> String {
    if let Some(hint) = hint {
        message.push_str("\nwhat to do: ");
        message.push_str(hint);
    }
    message
}

/// The last lines of `said` that are not blank, indented.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    let indented: Vec<String> = lines[first..].iter().map(|line| format!("    {line}")).collect();
    indented.join("\n")
}

/// True when `program` is found on `PATH`.
pub(crate) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_attempt_the_status_the_output_and_the_way_out() {
        let task = Task::new("count sheep", "sh")
            .args(["-c", "echo one; echo two >&2; exit 3"])
            .hint("sleep first");
        let message = task.capture().unwrap_err().to_string();
        for part in ["failed to count sheep", "exit status: 3", "    one", "    two", "sleep first"]
        {
            assert!(message.contains(part), "`{part}` is missing from: {message}");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = Task::new("do magic", "no-such-program-anywhere").stream().unwrap_err();
        assert!(error.to_string().contains("could not start `no-such-program-anywhere`"));
    }

    #[test]
    fn only_the_last_lines_are_repeated() {
        let said: String = (0..100).map(|line| format!("line {line}\n\n")).collect();
        let tail = tail(&said);
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 99") && tail.starts_with("    line 80"));
    }

    #[test]
    fn a_log_holds_both_streams_and_its_end_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let task = Task::new("fail", "sh").args(["-c", "echo out; echo err >&2; exit 1"]);
        let message = task.log_to(&log).unwrap_err().to_string();
        assert!(message.contains("    out\n    err"), "{message}");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "out\nerr\n");
    }

    #[test]
    fn a_running_command_is_judged_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let good = Task::new("pass", "true").start_logged(&log).unwrap();
        assert!(good.finish().is_ok());
        let bad = Task::new("fail", "false").start_logged(&log).unwrap();
        assert!(bad.finish().is_err());
    }
}
