//! docs/models.md is what the registry and the goldens say. With `SLIPSTREAM_BLESS=1` the test writes it
//! anew instead of comparing.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use slipstream_engine::cache::{KvScheme, Packing};
use slipstream_engine::mlx::Device;
use slipstream_engine::model::{self, Family, LoadOptions, Loaded, Tower};
use slipstream_tests::sources::repository;

use crate::goldens;

const HEAD: &str = "\
# Model families

Written by the tests from the registry and the goldens (`SLIPSTREAM_BLESS=1 cargo test -p slipstream-tests
models_table`); do not edit.

A checkpoint's `model_type` names its family; others are refused. **Caches**: *full* keeps every token,
*sliding* the last ones of a window, *recurrent* a state of constant size, *latent* what the family makes of
tokens. **Lane**: rows of *batched* families share steps, the others run alone. **Quantized KV**: whether
`--kv-quant 4|8` packs at least some of the layers, given heads that divide into groups. **Proven**: tiny checkpoints
whose tokens and logits equal mlx-lm 0.32.2's (or each row's own, where mlx-lm's batches are wrong), with the
types they were compared in, under `goldens/`; bf16 and f16 bit for bit, f32 up to the order of sums.

| family | caches | lane | quantized KV | not run | proven |
|---|---|---|---|---|---|
";

/// A checkpoint of a family.
struct Proof {
    name: String,
    loaded: Loaded,
}

impl Proof {
    fn read(name: String) -> Self {
        let options = LoadOptions { dtype: None, back_end: Device::cpu().back_end() };
        let loaded = model::load(&goldens::directory().join(&name), options);
        Self { loaded: loaded.unwrap_or_else(|error| panic!("{name}: {error}")), name }
    }

    fn caches(&self) -> BTreeSet<&'static str> {
        self.loaded.model.new_caches().kinds().collect()
    }

    /// Whether some of its layers can be packed; tiny heads may be too narrow for groups of 64.
    fn packs(&self) -> bool {
        let packing = Packing::new(8, 32).unwrap();
        let shapes = self.loaded.model.token_shapes();
        KvScheme::Uniform { packing, start_tokens: 0 }.check(&shapes).is_ok()
            || shapes.iter().flatten().any(|shape| shape.key_dimension % 32 != 0)
    }

    /// `name (bf16, f32)`.
    fn shown(&self) -> String {
        let directory = goldens::directory().join(&self.name);
        let held = |file: &str| directory.join(file).is_file();
        let files =
            [("cases.json", "bf16"), ("cases.float16.json", "f16"), ("cases.float32.json", "f32")];
        let dtypes: Vec<_> = files.iter().filter(|(file, _)| held(file)).map(|it| it.1).collect();
        format!("{} ({})", self.name, dtypes.join(", "))
    }
}

fn line(family: &Family, proofs: &[Proof]) -> String {
    let own: Vec<_> =
        proofs.iter().filter(|it| it.loaded.family.model_type == family.model_type).collect();
    assert!(!own.is_empty(), "`{}` has no golden", family.model_type);
    let caches: BTreeSet<_> = own.iter().flat_map(|proof| proof.caches()).collect();
    let caches: Vec<_> = caches.into_iter().collect();
    let serial = own.iter().find_map(|proof| proof.loaded.serial_because.clone());
    let towers: Vec<_> = family
        .towers
        .iter()
        .map(|tower| match tower {
            Tower::Vision => "images",
            Tower::Audio => "sound",
        })
        .collect();
    let shown: Vec<_> = own.iter().map(|proof| proof.shown()).collect();
    format!(
        "| `{}` | {} | {} | {} | {} | {} |\n",
        family.model_type,
        caches.join(", "),
        serial.map_or_else(|| "batched".to_owned(), |reason| format!("serial: {reason}")),
        if own.iter().any(|proof| proof.packs()) { "yes" } else { "no" },
        towers.join(", "),
        shown.join(", "),
    )
}

fn table() -> String {
    let proofs: Vec<_> = goldens::checkpoints().into_iter().map(Proof::read).collect();
    let mut table = HEAD.to_owned();
    for family in Family::all() {
        write!(table, "{}", line(family, &proofs)).unwrap();
    }
    table
}

#[test]
fn the_table_of_families_is_what_the_registry_and_the_goldens_say() {
    let path: &Path = &repository().join("docs/models.md");
    let table = table();
    if std::env::var_os("SLIPSTREAM_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &table).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == table, "docs/models.md is stale: write it anew with SLIPSTREAM_BLESS=1");
}
