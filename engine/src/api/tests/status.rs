//! Models, health and statistics.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::gateway::Health;
use crate::telemetry::{
    BatchSnapshot, DiskCacheSnapshot, MemorySnapshot, PromptCacheSnapshot, RowSnapshot, Snapshot,
    StepTimes, Totals,
};

#[tokio::test]
async fn the_served_model_is_listed_and_found_by_an_id_with_a_slash() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    let list = server.client.get("/v1/models").await.json();
    let model = server.client.get("/v1/models/lab/bytes").await.json();
    let escaped = server.client.get("/v1/models/lab%2Fbytes").await.json();
    assert_eq!(list, json!({"object": "list", "data": [model]}));
    assert_eq!(model, escaped);
    for (field, value) in [
        ("id", json!("lab/bytes")),
        ("object", json!("model")),
        ("owned_by", json!("slipstream")),
        ("context_window", json!(4096)),
        ("batchable", json!(true)),
    ] {
        assert_eq!(model[field], value, "{field}");
    }
}

#[tokio::test]
async fn health_follows_the_engine() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    let well = server.client.get("/health").await;
    assert_eq!((well.status, well.json()), (200, json!({"status": "ok"})));
    let reason = "no step for 60 s with 3 live rows".to_owned();
    *server.rows.health.lock() = Health::Unavailable { reason: reason.clone() };
    let ill = server.client.get("/health").await;
    let body = json!({"status": "unavailable", "reason": reason});
    assert_eq!((ill.status, ill.json()), (503, body));
}

#[tokio::test]
async fn stats_show_every_figure_of_the_snapshot() {
    let server = Server::start(ScriptedRows::new(|_| Vec::new())).await;
    *server.rows.snapshot.lock() = Arc::new(snapshot());
    let mut stats = server.client.get("/stats").await.json();
    let uptime = stats.as_object_mut().unwrap().remove("uptime_seconds").unwrap();
    assert!(uptime.as_f64().unwrap() > 0.0);
    assert_eq!(
        stats,
        json!({
            "model": {
                "id": "lab/bytes", "context_tokens": 4096, "vocab_size": 258, "dtype": "float32",
                "back_end": "script", "kv_scheme": "off", "serial_because": [],
            },
            "batch": {
                "configured": 8, "mode": "batch", "batched": true, "active_rows": 2,
                "pending_rows": 1, "submitted_rows": 30, "kv_bytes": 4096,
                "kv_projected_bytes": 6000, "kv_budget_bytes": 8192, "prefill_chunk_tokens": 96,
                "max_gap_ms": 750, "tokens_per_second_now": 3.5,
            },
            "rows": [{
                "id": "chatcmpl-1", "model": "lab/bytes", "client": "opencode", "state": "waiting", "lane": "serial",
                "lane_reasons": ["the batch cap is 1"], "priority": "background",
                "prompt_tokens": 5, "cached_tokens": 4, "prefilled_tokens": 1, "generated_tokens": 2, "max_tokens": 9,
                "tokens_per_second_now": 1.5, "tokens_per_second_mean": 2.5, "kv_bytes": 64,
                "kv_projected_bytes": 640, "waiting_reason": "the batch is full", "queue_place": 3,
                "queue_ms": 70.5, "prefill_ms": 6.0, "decode_ms": 0.5, "age_ms": 77,
            }],
            "step": {
                "steps": 21, "host_ms_p50": 0.25, "host_ms_p99": 0.5, "build_ms_p50": 0.125,
                "build_ms_p99": 0.375, "gap_ms_p50": 10.5, "gap_ms_p99": 20.5,
            },
            "totals": {
                "finished_rows": 1, "cancelled_rows": 2, "failed_rows": 3, "prompt_tokens": 4,
                "cached_tokens": 60, "generated_tokens": 5, "decode_steps": 6, "prefill_chunks": 7, "joins": 8,
                "peak_rows": 9,
            },
            "prompt_cache": {
                "entries": 3, "bytes": 700, "cap_bytes": 1000, "hits": 5, "misses": 2,
                "hit_tokens": 60, "evictions": 1, "refusals": 4,
            },
            "disk_cache": {
                "entries": 2, "bytes": 900, "max_bytes": 2000, "queued_bytes": 30,
                "written_today_bytes": 950, "day_limit_bytes": 4000, "written_bytes": 9000,
                "saved": 3, "restored": 6, "restored_tokens": 77, "evicted": 1, "dropped": 5,
                "failed": 8, "read_only": "the disk is full",
            },
            "memory": {
                "active_bytes": 10, "cache_bytes": 11, "peak_bytes": 12, "weights_bytes": 13,
            },
        })
    );
}

fn kept_prompts() -> PromptCacheSnapshot {
    PromptCacheSnapshot {
        entries: 3,
        bytes: 700,
        cap_bytes: 1000,
        hits: 5,
        misses: 2,
        hit_tokens: 60,
        evictions: 1,
        refusals: 4,
    }
}

fn stored_prompts() -> DiskCacheSnapshot {
    DiskCacheSnapshot {
        entries: 2,
        bytes: 900,
        max_bytes: 2000,
        queued_bytes: 30,
        written_today_bytes: 950,
        day_limit_bytes: Some(4000),
        written_bytes: 9000,
        saved: 3,
        restored: 6,
        restored_tokens: 77,
        evicted: 1,
        dropped: 5,
        failed: 8,
        read_only: Some("the disk is full".to_owned()),
    }
}

fn waiting_row() -> RowSnapshot {
    RowSnapshot {
        id: "chatcmpl-1".to_owned(),
        client: "opencode".into(),
        state: "waiting",
        lane: "serial",
        lane_reasons: ["the batch cap is 1".to_owned()].into(),
        priority: "background",
        cached_tokens: 4,
        prompt_tokens: 5,
        prefilled_tokens: 1,
        generated_tokens: 2,
        max_tokens: 9,
        tokens_per_second_now: 1.5,
        tokens_per_second_mean: 2.5,
        kv_bytes: 64,
        kv_projected_bytes: 640,
        waiting_reason: Some("the batch is full".to_owned()),
        queue_place: Some(3),
        queue_ms: 70.5,
        prefill_ms: 6.0,
        decode_ms: 0.5,
        age_ms: 77,
    }
}

pub(super) fn snapshot() -> Snapshot {
    Snapshot {
        rows: vec![waiting_row()],
        batch: BatchSnapshot {
            configured: 8,
            mode: "batch",
            batched: true,
            active_rows: 2,
            pending_rows: 1,
            submitted_rows: 30,
            kv_bytes: 4096,
            kv_projected_bytes: 6000,
            kv_budget_bytes: Some(8192),
            prefill_chunk_tokens: 96,
            max_gap_ms: Some(750),
            tokens_per_second_now: 3.5,
        },
        step: StepTimes {
            steps: 21,
            host_ms_p50: 0.25,
            host_ms_p99: 0.5,
            build_ms_p50: 0.125,
            build_ms_p99: 0.375,
            gap_ms_p50: 10.5,
            gap_ms_p99: 20.5,
        },
        prompt_cache: kept_prompts(),
        disk_cache: Some(stored_prompts()),
        totals: Totals {
            cached_tokens: 60,
            finished_rows: 1,
            cancelled_rows: 2,
            failed_rows: 3,
            prompt_tokens: 4,
            generated_tokens: 5,
            decode_steps: 6,
            prefill_chunks: 7,
            joins: 8,
            peak_rows: 9,
        },
        memory: MemorySnapshot {
            active_bytes: 10,
            cache_bytes: 11,
            peak_bytes: 12,
            weights_bytes: 13,
        },
        progressed_at: Duration::from_millis(70),
    }
}
