//! MLX on Linux. Mlx-sys builds MLX only on a Mac, so here we bring our own and have cargo skip
//! mlx-sys's build script (cargo allows that for crates that name a native library, `mlx` here):
//!
//! 1. fetch the wheel with the prebuilt `libmlx.so` of the version that mlx-sys pins, unpack it,
//!    and put OpenBLAS in the place of the reference BLAS it carries;
//! 2. compile mlx-c, whose sources come with mlx-sys, against it;
//! 3. generate `bindings.rs` from mlx-c's headers;
//! 4. write `.mlx/cargo.toml`, which the committed `.cargo/config.toml` includes.
//!
//! All of it lies under `.mlx/`: `download/`, `wheel/`, `mlxc/`, `bindings/` and `cargo.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use crate::fetch::{self, Wheel};
use crate::process::Task;
use crate::stamp::{Stamp, create_folder, fresh_partial, remove_if_there, rename, write_whole};
use crate::workspace::{Workspace, locked_version};

/// What mlx-sys 0.7.0 was written for. A newer mlx-sys needs a look at this whole file.
const MLX_SYS: &str = "0.7.0";

const WHEEL_X86_64: Wheel = Wheel {
    requirement: "mlx-cpu==0.32.2",
    file: "mlx_cpu-0.32.2-py3-none-manylinux_2_35_x86_64.whl",
    size_bytes: 10_388_414,
    sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
};

const WHEEL_AARCH64: Wheel = Wheel {
    requirement: "mlx-cpu==0.32.2",
    file: "mlx_cpu-0.32.2-py3-none-manylinux_2_35_aarch64.whl",
    size_bytes: 8_822_016,
    sha256: "d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b",
};

const HEADER: &str = include_str!("../assets/mlx_c_linux.h");

/// Raised when the steps below change in a way that what they made before must go.
const RECIPE: &str = "1";

/// Makes `.mlx/` whole.
pub(crate) fn ready(workspace: &Workspace) -> Result<()> {
    let recipe = Recipe::new(workspace)?;
    let stamp = recipe.stamp();
    if stamp.is_current() && recipe.cargo_config().is_file() && recipe.bindings().is_file() {
        return Ok(());
    }
    stamp.clear()?;
    create_folder(&recipe.folder)?;
    recipe.unpack_wheel()?;
    let sources = recipe.mlx_c_sources()?;
    recipe.build_mlx_c(&sources)?;
    recipe.generate_bindings(&sources)?;
    recipe.write_cargo_config()?;
    stamp.write()
}

/// The folder, and what this machine asks for.
struct Recipe<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
    wheel: Wheel,
    architecture: &'static str,
}

impl<'a> Recipe<'a> {
    fn new(workspace: &'a Workspace) -> Result<Self> {
        let lock_path = workspace.root().join("Cargo.lock");
        let lock = fs::read_to_string(&lock_path)
            .with_context(|| format!("failed to read `{}`", lock_path.display()))?;
        check_mlx_sys(&lock)?;
        let architecture = std::env::consts::ARCH;
        let wheel = wheel_for(architecture)?;
        Ok(Self { workspace, folder: workspace.mlx(), wheel, architecture })
    }

    /// The folder's own place counts: absolute paths are written into what we make.
    fn stamp(&self) -> Stamp {
        let inputs = [
            ("recipe", RECIPE),
            ("mlx-sys", MLX_SYS),
            ("wheel", self.wheel.sha256),
            ("header", HEADER),
            ("folder", &self.folder.to_string_lossy()),
        ];
        Stamp::new(self.folder.join("stamp"), &inputs)
    }

    fn unpacked(&self) -> PathBuf {
        self.folder.join("wheel")
    }

    fn mlx_c(&self) -> PathBuf {
        self.folder.join("mlxc")
    }

    fn header(&self) -> PathBuf {
        self.folder.join("mlx_c_linux.h")
    }

    fn bindings(&self) -> PathBuf {
        self.folder.join("bindings/bindings.rs")
    }

    fn cargo_config(&self) -> PathBuf {
        self.folder.join("cargo.toml")
    }

    fn unpack_wheel(&self) -> Result<()> {
        let unpacked = self.unpacked();
        let stamp = Stamp::new(
            self.folder.join("wheel.stamp"),
            &[("recipe", RECIPE), ("wheel", self.wheel.sha256)],
        );
        if stamp.is_current() && unpacked.is_dir() {
            return Ok(());
        }
        stamp.clear()?;
        eprintln!("MLX: fetching `{}`", self.wheel.requirement);
        let wheel = fetch::fetch(&self.wheel, &self.folder.join("download"))?;
        let partial = fresh_partial(&unpacked)?;
        fetch::unpack(&wheel, &partial)?;
        link_openblas(&partial.join("mlx_cpu.libs"))?;
        remove_if_there(&unpacked)?;
        rename(&partial, &unpacked)?;
        stamp.write()
    }

    /// Where cargo put mlx-c's sources: inside mlx-sys.
    fn mlx_c_sources(&self) -> Result<PathBuf> {
        eprintln!("MLX: finding mlx-c's sources");
        let fetched = self.workspace.cargo("fetch the crates").args(["fetch", "--quiet"]);
        fetched
            .hint("check that cargo reaches its registry, then run the command again")
            .stream()?;
        let metadata = self.workspace.cargo_metadata(true)?;
        let manifest = manifest_of(&metadata, "mlx-sys")
            .context("failed to find `mlx-sys` in the output of `cargo metadata`")?;
        let sources = Path::new(manifest).with_file_name("src").join("mlx-c");
        if !sources.join("CMakeLists.txt").is_file() {
            bail!("failed to find mlx-c's `CMakeLists.txt` in `{}`", sources.display());
        }
        Ok(sources)
    }

    fn build_mlx_c(&self, sources: &Path) -> Result<()> {
        eprintln!("MLX: compiling mlx-c");
        write_whole(&self.header(), HEADER)?;
        let include = self.unpacked().join("mlx/include");
        let flags = format!("-include \"{}\" -I\"{}\"", self.header().display(), include.display());
        let configs = self.unpacked().join("mlx/share/cmake/MLX");
        // A build folder that remembers another place or compiler makes cmake stop, so start anew.
        remove_if_there(&self.mlx_c())?;
        Task::new("configure mlx-c", "cmake")
            .args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DMLX_C_BUILD_EXAMPLES=OFF"])
            .args(["-DMLX_C_USE_SYSTEM_MLX=ON", "-S"])
            .arg(sources)
            .arg("-B")
            .arg(self.mlx_c())
            .arg(format!("-DMLX_DIR={}", configs.display()))
            .arg(format!("-DCMAKE_CXX_FLAGS={flags}"))
            .hint("the log `.mlx/configure.log` says what cmake did not find")
            .log_to(&self.folder.join("configure.log"))?;
        Task::new("compile mlx-c", "cmake")
            .arg("--build")
            .arg(self.mlx_c())
            .hint("the log `.mlx/build.log` has the compiler's words; GCC 12 or later is needed")
            .log_to(&self.folder.join("build.log"))
    }

    fn generate_bindings(&self, sources: &Path) -> Result<()> {
        eprintln!("MLX: generating bindings");
        let folder = self.folder.join("bindings");
        create_folder(&folder)?;
        let text = bindings_text(sources, &self.header())?;
        write_whole(&self.bindings(), &text)
    }

    fn write_cargo_config(&self) -> Result<()> {
        let text = cargo_config_text(self.architecture, &self.folder);
        write_whole(&self.cargo_config(), &text)
    }
}

fn check_mlx_sys(lock: &str) -> Result<()> {
    match locked_version(lock, "mlx-sys") {
        Some(MLX_SYS) => Ok(()),
        Some(other) => bail!(
            "failed to set MLX up: `Cargo.lock` has mlx-sys {other}, this recipe is for {MLX_SYS}\n\
             what to do: bring `xtask/src/mlx.rs` up to date with the new version"
        ),
        None => bail!("failed to set MLX up: `Cargo.lock` does not have mlx-sys"),
    }
}

fn wheel_for(architecture: &str) -> Result<Wheel> {
    match architecture {
        "x86_64" => Ok(WHEEL_X86_64),
        "aarch64" => Ok(WHEEL_AARCH64),
        other => bail!("failed to set MLX up: MLX has no wheel for Linux on `{other}`"),
    }
}

fn manifest_of<'a>(metadata: &'a serde_json::Value, package: &str) -> Option<&'a str> {
    let packages = metadata["packages"].as_array()?;
    packages.iter().find(|found| found["name"] == package)?["manifest_path"].as_str()
}

/// What the wheel is to pip, for others who must have the same MLX.
#[cfg(test)]
pub(crate) fn wheel_requirement() -> &'static str {
    WHEEL_X86_64.requirement
}

/// Where a wheel's own reference BLAS is kept when OpenBLAS takes its place, in its libraries' folder.
const REFERENCE_BLAS: &str = "reference";

/// The reference BLAS of a wheel's bundled libraries. Through `LD_PRELOAD` it gives the same f32 bits on
/// every machine; `LD_LIBRARY_PATH` comes too late, behind the run path of the wheel's own libraries.
pub(crate) fn reference_blas(libraries: &Path) -> Result<PathBuf> {
    let aside = libraries.join(REFERENCE_BLAS);
    bundled_blas(if aside.is_dir() { &aside } else { libraries })
}

/// Makes the reference BLAS among a wheel's bundled libraries a link to the system's OpenBLAS, and
/// keeps the former aside. Without an OpenBLAS it stays: right, but several times slower.
pub(crate) fn link_openblas(libraries: &Path) -> Result<()> {
    let bundled = bundled_blas(libraries)?;
    let Some(openblas) = openblas() else {
        eprintln!("MLX: found no OpenBLAS, so matrices will be multiplied slowly");
        return Ok(());
    };
    let aside = libraries.join(REFERENCE_BLAS);
    create_folder(&aside)?;
    rename(&bundled, &aside.join(bundled.file_name().context("a library has a name")?))?;
    std::os::unix::fs::symlink(&openblas, &bundled).with_context(|| {
        format!("failed to link `{}` to `{}`", bundled.display(), openblas.display())
    })
}

/// The `libblas-<hash>.so...` that the wheel's other libraries load by that name.
fn bundled_blas(libraries: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(libraries)
        .with_context(|| format!("failed to list `{}`", libraries.display()))?;
    let is_blas = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libblas-"))
    };
    let found = entries.flatten().map(|entry| entry.path()).find(is_blas);
    found.with_context(|| format!("failed to find `libblas-*` in `{}`", libraries.display()))
}

/// The system's OpenBLAS, under the BLAS interface. Debian's place first, then others'.
fn openblas() -> Option<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let candidates = [
        format!("/usr/lib/{architecture}-linux-gnu/openblas-pthread/libblas.so.3"),
        "/usr/lib64/libopenblasp.so.0".to_owned(),
        "/usr/lib64/libopenblas.so.0".to_owned(),
        "/usr/lib/libopenblas.so.0".to_owned(),
    ];
    candidates.into_iter().map(PathBuf::from).find(|path| path.exists())
}

/// Bindings to all of mlx-c. The shape of the half types and the Rust version are mlx-sys's.
fn bindings_text(sources: &Path, header: &Path) -> Result<String> {
    let rust = bindgen::RustTarget::stable(73, 0)
        .map_err(|error| anyhow!("failed to ask bindgen for Rust 1.73: {error}"))?;
    let half = "#[repr(transparent)]\n#[derive(Debug, Default, Clone, Copy)]\n\
                pub struct float16_t(pub u16);";
    let builder = bindgen::Builder::default()
        .header_contents("mlx_c.h", &umbrella_text(sources)?)
        .clang_arg(format!("-I{}", sources.display()))
        .clang_args(["-include", &header.to_string_lossy()])
        .rust_target(rust)
        .blocklist_function("malloc|realloc")
        .blocklist_type("b?float16_t")
        .raw_line(half)
        .raw_line("pub type bfloat16_t = u16;")
        .formatter(bindgen::Formatter::None);
    let bindings = builder.generate().map_err(|error| {
        anyhow!(
            "failed to generate bindings to mlx-c: {error}\n\
             what to do: check that libclang is installed (Debian: `libclang-dev`)"
        )
    })?;
    Ok(bindings.to_string())
}

/// A header that includes every header of mlx-c.
fn umbrella_text(sources: &Path) -> Result<String> {
    let folder = sources.join("mlx/c");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("failed to list `{}`", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut headers: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "h")).collect();
    headers.sort();
    Ok(headers.iter().map(|path| format!("#include \"{}\"\n", path.display())).collect())
}

/// What cargo takes instead of the output of mlx-sys's build script. `runtime_library_dir` is
/// passed on to the build script of the engine, which makes it the run path of our executables.
fn cargo_config_text(architecture: &str, folder: &Path) -> String {
    let quoted = |path: &str| toml_string(&folder.join(path).to_string_lossy());
    let native = |path: &str| toml_string(&format!("native={}", folder.join(path).display()));
    let bindings = quoted("bindings");
    let libraries = quoted("wheel/mlx/lib");
    let (mlx_c, mlx) = (native("mlxc"), native("wheel/mlx/lib"));
    format!(
        "# Written by `cargo xtask`; it is made anew whenever its inputs change.\n\
         [target.{architecture}-unknown-linux-gnu.mlx]\n\
         rustc-link-lib = [\"static=mlxc\", \"dylib=mlx\", \"dylib=stdc++\"]\n\
         rustc-link-search = [{mlx_c}, {mlx}]\n\
         rustc-env = {{ OUT_DIR = {bindings} }}\n\
         runtime_library_dir = {libraries}\n"
    )
}

/// A TOML basic string.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mlx_sys_is_refused_by_its_version() {
        let lock = |version: &str| format!("name = \"mlx-sys\"\nversion = \"{version}\"\n");
        check_mlx_sys(&lock(MLX_SYS)).unwrap();
        let message = check_mlx_sys(&lock("0.8.1")).unwrap_err().to_string();
        assert!(message.contains("0.8.1") && message.contains(MLX_SYS), "{message}");
        assert!(check_mlx_sys("").is_err());
    }

    #[test]
    fn each_architecture_has_its_own_wheel_of_one_version() {
        let (intel, arm) = (wheel_for("x86_64").unwrap(), wheel_for("aarch64").unwrap());
        assert_eq!(intel.requirement, arm.requirement);
        for (wheel, architecture) in [(intel, "x86_64"), (arm, "aarch64")] {
            assert!(wheel.file.contains(architecture));
            assert_eq!(wheel.sha256.len(), 64);
        }
        assert_ne!(intel.sha256, arm.sha256);
        assert!(wheel_for("riscv64").is_err());
    }

    #[test]
    fn the_cargo_config_survives_odd_folder_names() {
        let text = cargo_config_text("x86_64", Path::new("/a \"b\"\\c/.mlx"));
        assert!(text.contains(r#"OUT_DIR = "/a \"b\"\\c/.mlx/bindings""#), "{text}");
        assert!(text.contains(r#""native=/a \"b\"\\c/.mlx/mlxc""#), "{text}");
        assert!(text.contains("[target.x86_64-unknown-linux-gnu.mlx]"), "{text}");
    }

    #[test]
    fn the_bundled_blas_is_found_among_its_neighbours() {
        let directory = tempfile::tempdir().unwrap();
        assert!(bundled_blas(directory.path()).is_err());
        for name in ["liblapack-86b2c207.so.3.10.0", "libblas-bd8a282c.so.3.10.0"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let found = bundled_blas(directory.path()).unwrap();
        assert!(found.ends_with("libblas-bd8a282c.so.3.10.0"));
    }

    #[test]
    fn the_manifest_of_a_package_is_found_by_its_name() {
        let metadata = serde_json::json!({"packages": [
            {"name": "mlx-rs", "manifest_path": "/x/mlx-rs/Cargo.toml"},
            {"name": "mlx-sys", "manifest_path": "/x/mlx-sys/Cargo.toml"},
        ]});
        assert_eq!(manifest_of(&metadata, "mlx-sys"), Some("/x/mlx-sys/Cargo.toml"));
        assert_eq!(manifest_of(&metadata, "mlx"), None);
        assert_eq!(manifest_of(&serde_json::json!({}), "mlx-sys"), None);
    }
}
