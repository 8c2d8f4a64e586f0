//! `slipstream fit`: whether a model fits this machine, and what it then has room for.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipstream_engine::cache::{GROUP_SIZE_DEFAULT, KvQuant, KvScheme, Packing, read_kv_config};
use slipstream_engine::clock::Clock;
use slipstream_engine::config::{ByteCount, parse_bytes};
use slipstream_engine::error::{Code, Error, Result};
use slipstream_engine::hub::fit::{self, Fit, Machine, RowsFit, Subject, Wish};
use slipstream_engine::hub::library::{self, Facts};
use slipstream_engine::mlx::{Device, Dtype};
use slipstream_engine::model::outline::{FloatType, Outline};

use crate::library::PlacesArguments;
use crate::load::DtypeChoice;

/// What `slipstream fit` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The model: a name of `slipstream ls`, or its directory.
    model: PathBuf,
    /// As if the machine had this much memory, none of it used: bytes such as 16G or 24Gi.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Bits that KV caches are quantized to: off, 4, 8, or as the model's kv_config.json says (config).
    #[arg(long, value_name = "off|4|8|config", default_value = "off")]
    kv_quant: KvQuant,
    /// The type to compute in; auto is what `serve` would take.
    #[arg(long, value_enum, default_value_t = DtypeChoice::Auto)]
    dtype: DtypeChoice,
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    places: PlacesArguments,
}

/// Tells how the model fits.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let directory = arguments.places.find(&arguments.model)?.directory;
    let facts = facts(&directory)?;
    let scheme = scheme(arguments.kv_quant, &directory, &facts.outline)?;
    let float_type = float_type(arguments.dtype);
    let wish = Wish { scheme, float_type, ..Wish::default() };
    let machine = fit::of_device(Device::select()?)?.measured(&Clock::monotonic());
    let machine = match arguments.memory {
        Some(bytes) => machine.with_memory(bytes),
        None => machine,
    };
    let subject = Subject { outline: &facts.outline, weights: &facts.weights };
    let fit = fit::fit(subject, &machine, &wish);
    match arguments.json {
        true => println!("{:#}", as_json(&fit, &machine)),
        false => println!("{}", told(&fit, &machine)),
    }
    Ok(())
}

fn facts(directory: &Path) -> Result<Facts> {
    let entry = library::inspect(directory)?;
    entry.check_ready()?;
    // A ready entry has them.
    entry.facts.ok_or_else(|| {
        let message = format!("nothing is known of `{}`", directory.display());
        Error::new(Code::BadModel, message)
    })
}

fn scheme(quant: KvQuant, directory: &Path, outline: &Outline) -> Result<KvScheme> {
    let layers = outline.token_shapes();
    match quant {
        KvQuant::Off => Ok(KvScheme::Plain),
        KvQuant::Config => read_kv_config(directory, &layers),
        KvQuant::Bits(bits) => {
            let packing = Packing::new(i64::from(bits), i64::from(GROUP_SIZE_DEFAULT))?;
            let scheme = KvScheme::Uniform { packing, start_tokens: 0 };
            scheme.check(&layers).map(|()| scheme)
        }
    }
}

pub(crate) fn float_type(choice: DtypeChoice) -> Option<FloatType> {
    choice.dtype().map(|dtype| match dtype {
        Dtype::Float16 => FloatType::F16,
        Dtype::Bfloat16 => FloatType::Bf16,
        _ => FloatType::F32,
    })
}

fn bytes(text: &str) -> std::result::Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected bytes such as 500M, 16G or 24Gi".to_owned())
}

fn told(fit: &Fit, machine: &Machine) -> String {
    let bytes = |bytes: u64| ByteCount(bytes).to_string();
    let mut lines = vec![
        format!("{} on {} with {}", fit.verdict.name(), machine.name, bytes(machine.memory_bytes)),
        String::new(),
        format!("weights in {:<7} {:>10}", fit.float_type.name(), bytes(fit.weights_bytes)),
        format!("while loading      {:>10}", bytes(fit.load_peak_bytes)),
        format!("a prompt's chunk   {:>10}", bytes(fit.transient_bytes)),
        format!("a token of a row   {:>10}", bytes(fit.token_bytes)),
        format!("usable of memory   {:>10}", bytes(fit.usable_bytes)),
        format!("left to caches     {:>10}", bytes(fit.kv_budget_bytes)),
        String::new(),
        "rows  tokens each  tokens/s at most".to_owned(),
    ];
    lines.extend(fit.rows.iter().map(|rows| {
        let speed = rows.decode_tokens_per_second;
        let speed = speed.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.0}"));
        format!("{:>4}  {:>11}  {speed:>16}", rows.rows, rows.context_tokens)
    }));
    lines.join("\n")
}

fn as_json(fit: &Fit, machine: &Machine) -> Value {
    let rows = |rows: &RowsFit| {
        json!({
            "rows": rows.rows,
            "context_tokens": rows.context_tokens,
            "decode_tokens_per_second_max": rows.decode_tokens_per_second,
        })
    };
    json!({
        "verdict": fit.verdict.name(),
        "machine": {
            "name": machine.name,
            "memory_bytes": machine.memory_bytes,
            "available_bytes": machine.available_bytes,
            "bandwidth_bytes_per_second": machine.bandwidth.map(|it| it.bytes_per_second),
            "bandwidth_measured": machine.bandwidth.map(|it| it.measured),
        },
        "dtype": fit.float_type.name(),
        "weights_bytes": fit.weights_bytes,
        "load_peak_bytes": fit.load_peak_bytes,
        "transient_bytes": fit.transient_bytes,
        "token_bytes": fit.token_bytes,
        "headroom_bytes": fit.headroom_bytes,
        "usable_bytes": fit.usable_bytes,
        "kv_budget_bytes": fit.kv_budget_bytes,
        "rows": fit.rows.iter().map(rows).collect::<Vec<_>>(),
    })
}
