//! The bench of a scripted server runs through: its server, its clients' process, what it prints.

use std::process::Command;

use serde_json::Value;
use slipstream_tests::{demo, server};

#[test]
fn every_client_of_a_scripted_server_hears_its_own_script() {
    let mut bench = Command::new(demo::binary());
    bench.args(["bench", "--figures", "serving", "--smoke", "--json", "--model"]);
    let output = server::run(bench.arg(demo::model_directory()));
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let crowds = told["serving"]["tokens"].as_array().unwrap();
    assert_eq!(crowds.len(), 3, "{told}");
    for crowd in crowds {
        assert_eq!(crowd["wrong_streams"], 0, "{crowd}");
        let (tokens, streams) = (crowd["tokens"].as_u64(), crowd["streams"].as_u64());
        assert!(tokens > streams, "{crowd}");
        assert!(crowd["serving_cpu_us"].as_f64().is_some_and(|us| us > 0.0), "{crowd}");
    }
    for first in told["serving"]["first_text"].as_array().unwrap() {
        assert!(first["overhead_ms_p99"].is_number(), "{first}");
    }
}
