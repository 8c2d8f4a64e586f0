//! The system packages we build with. [`PACKAGES`] is the one place that lists them. On Debian and
//! Ubuntu missing ones are named, asked for once and installed; on other Linux systems they are
//! only named. A Mac needs Xcode's tools and cmake, which we look for but do not install.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{Task, on_path};

/// A Debian package, why we need it, and what else shows that the need is met.
#[derive(Debug)]
struct Package {
    name: &'static str,
    why: &'static str,
    or: Or,
}

/// What makes a package unnecessary although dpkg does not have it.
#[derive(Debug)]
enum Or {
    Nothing,
    /// This program on `PATH`, from wherever.
    Program(&'static str),
    /// These modules of the `python3` on `PATH`.
    PythonModules(&'static [&'static str]),
}

const PACKAGES: &[Package] = &[
    Package { name: "g++", why: "compiles mlx-c", or: Or::Nothing },
    Package { name: "cmake", why: "configures the build of mlx-c", or: Or::Program("cmake") },
    Package { name: "ninja-build", why: "runs the build of mlx-c", or: Or::Program("ninja") },
    Package { name: "libclang-dev", why: "reads mlx-c's headers for bindgen", or: Or::Nothing },
    Package { name: "libfmt-dev", why: "stands in for <format> under GCC 12", or: Or::Nothing },
    Package {
        name: "libopenblas0-pthread",
        why: "multiplies matrices five times faster than the BLAS in MLX's wheel",
        or: Or::Nothing,
    },
    Package { name: "python3", why: "runs pip", or: Or::Program("python3") },
    Package { name: "python3-pip", why: "fetches wheels", or: Or::PythonModules(&["pip"]) },
    Package {
        name: "python3-venv",
        why: "keeps the Python of tests and goldens apart",
        or: Or::PythonModules(&["venv", "ensurepip"]),
    },
    Package { name: "nodejs", why: "runs the tests' JavaScript clients", or: Or::Program("node") },
    Package { name: "npm", why: "fetches those clients' packages", or: Or::Program("npm") },
];

/// Sees to it that everything in [`PACKAGES`] is there. `yes` installs without asking.
pub(crate) fn ready(yes: bool) -> Result<()> {
    if cfg!(target_os = "macos") {
        return mac_tools();
    }
    if !on_path("dpkg-query") {
        return named_only();
    }
    let absent = missing(&installed(PACKAGES)?, on_path, python_lacks);
    if absent.is_empty() {
        return Ok(());
    }
    eprintln!("Packages to install:");
    for package in &absent {
        eprintln!("    {:<21} {}", package.name, package.why);
    }
    let names: Vec<&str> = absent.iter().map(|package| package.name).collect();
    if !yes && !agreed()? {
        bail!(
            "failed to set up: the packages above are not installed\n\
             what to do: run `apt-get install {}` as root, then the command again",
            names.join(" ")
        );
    }
    install(&names)
}

/// Mlx-sys builds MLX itself on a Mac, and needs these two for it.
fn mac_tools() -> Result<()> {
    let tools = Command::new("xcode-select").arg("-p").output();
    if !tools.is_ok_and(|output| output.status.success()) {
        bail!(
            "failed to find Xcode's command line tools\n\
             what to do: install Xcode from the App Store (MLX needs its Metal compiler), \
             then run `xcode-select --install`"
        );
    }
    if !on_path("cmake") {
        bail!("failed to find cmake\nwhat to do: install it, for example `brew install cmake`");
    }
    Ok(())
}

/// On a Linux without dpkg we cannot install, and names differ: tell, and go on. A build step that
/// lacks something then fails and says so.
fn named_only() -> Result<()> {
    let programs = ["g++", "cmake", "ninja", "python3"];
    let absent: Vec<&str> = programs.into_iter().filter(|program| !on_path(program)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = PACKAGES
        .iter()
        .map(|package| format!("    {:<21} {}", package.name, package.why))
        .collect();
    bail!(
        "failed to find {}\nwhat to do: install your system's counterparts of these Debian packages:\n{}",
        absent.join(", "),
        all.join("\n")
    );
}

/// Names of `packages` that dpkg has, by its own word.
fn installed(packages: &[Package]) -> Result<BTreeSet<String>> {
    // dpkg-query exits with 1 when it does not know one of the names: its answer still counts.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"])
        .args(packages.iter().map(|package| package.name))
        .output()
        .context("failed to ask dpkg-query for installed packages")?;
    Ok(installed_names(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses lines of `name status`; only `installed` counts (not `config-files`, `unpacked` ...).
fn installed_names(listing: &str) -> BTreeSet<String> {
    let words = listing.lines().filter_map(|line| line.split_once(' '));
    words.filter(|(_, status)| *status == "installed").map(|(name, _)| name.to_owned()).collect()
}

/// The packages whose need nothing meets.
fn missing(
    installed: &BTreeSet<String>,
    on_path: impl Fn(&str) -> bool,
    python_lacks: impl FnOnce(&[&str]) -> BTreeSet<String>,
) -> Vec<&'static Package> {
    let absent: Vec<&Package> =
        PACKAGES.iter().filter(|package| !installed.contains(package.name)).collect();
    let modules: Vec<&str> = absent.iter().flat_map(|package| package.modules()).copied().collect();
    // Starting Python costs more than all the rest, so ask once, and only if it matters.
    let lacking = if modules.is_empty() { BTreeSet::new() } else { python_lacks(&modules) };
    absent
        .into_iter()
        .filter(|package| match package.or {
            Or::Nothing => true,
            Or::Program(program) => !on_path(program),
            Or::PythonModules(modules) => modules.iter().any(|name| lacking.contains(*name)),
        })
        .collect()
}

impl Package {
    fn modules(&self) -> &'static [&'static str] {
        match self.or {
            Or::PythonModules(modules) => modules,
            Or::Nothing | Or::Program(_) => &[],
        }
    }
}

/// Which of `modules` the `python3` on `PATH` cannot find; all of them if it does not run.
fn python_lacks(modules: &[&str]) -> BTreeSet<String> {
    let script = "import importlib.util as u, sys\n\
                  print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])";
    let task = Task::new("look for Python modules", "python3").args(["-c", script]);
    match task.args(modules).capture() {
        Ok(lacking) => lacking.split_whitespace().map(str::to_owned).collect(),
        Err(_) => modules.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// Asks on a terminal. Where nobody can answer, `cargo xtask` was run to get this done: go on.
fn agreed() -> Result<bool> {
    if std::env::var_os("CI").is_some() || !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    eprint!("Install them now with apt-get? [Y/n] ");
    std::io::stderr().flush().context("failed to write to the terminal")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("failed to read the answer")?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "" | "y" | "yes")
}

fn install(names: &[&str]) -> Result<()> {
    apt_get("refresh the package lists", &["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(names);
    apt_get("install packages", &arguments)
}

fn apt_get(attempt: &str, arguments: &[&str]) -> Result<()> {
    let task = if is_root() {
        Task::new(attempt, "apt-get").env("DEBIAN_FRONTEND", "noninteractive")
    } else {
        // sudo drops the environment, so the setting goes through `env`. It asks for the password
        // on the terminal itself, not on stdin.
        Task::new(attempt, "sudo").args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
    };
    let hint = "see apt-get's words above; root or sudo and a working network are needed";
    task.args(arguments).hint(hint).stream()
}

/// Root owns its own `/proc` entry.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(packages: &[&Package]) -> Vec<&'static str> {
        packages.iter().map(|package| package.name).collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn only_fully_installed_packages_count() {
        let listing = "cmake installed\ng++ config-files\nlibfmt-dev not-installed\n\
                       ninja-build unpacked\npython3 installed\n\nnonsense\n";
        assert_eq!(installed_names(listing), set(&["cmake", "python3"]));
    }

    #[test]
    fn on_a_bare_machine_everything_is_missing() {
        let absent = missing(&BTreeSet::new(), |_| false, set);
        assert_eq!(absent.len(), PACKAGES.len());
    }

    #[test]
    fn nothing_is_missing_where_dpkg_has_all_and_python_is_not_even_asked() {
        let all: Vec<&str> = PACKAGES.iter().map(|package| package.name).collect();
        let absent = missing(&set(&all), |_| false, |_| panic!("Python was asked"));
        assert!(absent.is_empty());
    }

    #[test]
    fn a_program_from_elsewhere_stands_in_for_its_package() {
        let absent = missing(&BTreeSet::new(), |program| program == "cmake", set);
        assert!(!names(&absent).contains(&"cmake") && names(&absent).contains(&"ninja-build"));
    }

    #[test]
    fn one_lacking_module_is_enough_to_need_the_package() {
        let absent = missing(&BTreeSet::new(), |_| true, |_| set(&["ensurepip"]));
        assert!(names(&absent).contains(&"python3-venv"));
        assert!(!names(&absent).contains(&"python3-pip"));
    }

    #[test]
    fn the_answer_to_the_question_is_yes_unless_it_says_no() {
        for (answer, expected) in
            [("\n", true), ("y\n", true), ("YES\n", true), ("n\n", false), ("what\n", false)]
        {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn the_python_that_runs_here_is_asked_for_its_modules() {
        assert_eq!(python_lacks(&["zipfile", "no_such_module"]), set(&["no_such_module"]));
    }
}
