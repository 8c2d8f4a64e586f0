"""The scenarios: which rows exist, what they ask for and when they arrive.

A row starts at once, or is submitted when an earlier row has emitted a number of tokens.
"""

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import List, Optional

import numpy as np


@dataclass
class Start:
    after_row: int
    after_tokens: int


@dataclass
class Row:
    prompt: List[int]
    max_tokens: int
    start: Optional[Start] = None
    # The row ends when it emits the token that its serial run has at this index.
    stop_at: Optional[int] = None
    stop_tokens: List[int] = field(default_factory=list)


@dataclass
class Case:
    name: str
    rows: List[Row]
    # "serial" is mlx-lm's generate_step on the row alone; "continuous" is its BatchGenerator.
    lane: str = "continuous"
    prefill_chunk_tokens: int = 2048
    # How KV caches are quantized: dict(bits, group_size, start_tokens) in every layer, or a list as in
    # kv_config.json. Serial lane only: mlx-lm has no batch of quantized caches.
    kv: Optional[object] = None
    # What rows that share a batch must equal: "batch" is the oracle's batch, "alone" its run of the row
    # alone, where its batches are wrong.
    truth: str = "batch"


def prompt(name, length):
    """Random byte tokens, the same for the same name on every machine."""
    seed = int.from_bytes(hashlib.sha256(f"prompt:{name}".encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, length).tolist()


def serial(name, length, max_tokens, **kwargs):
    return Case(name, [Row(prompt(name, length), max_tokens)], lane="serial", **kwargs)


def static(name, lengths, max_tokens):
    return Case(name, [Row(prompt(f"{name}.{n}", n), max_tokens) for n in lengths])


def join(name, after_tokens, lengths=(5, 13), max_tokens=(20, 12)):
    first = Row(prompt(f"{name}.first", lengths[0]), max_tokens[0])
    second = Row(prompt(f"{name}.second", lengths[1]), max_tokens[1], Start(0, after_tokens))
    return Case(name, [first, second])


def full():
    """Every behaviour, for the first checkpoint in its own dtype."""
    leave = [(5, 6), (13, 18), (9, 11)]
    return [
        serial("serial_5", 5, 24),
        serial("serial_13", 13, 24),
        serial("serial_1", 1, 16),
        serial("serial_270", 270, 12),
        serial("serial_150_chunk_64", 150, 8, prefill_chunk_tokens=64),
        static("static_2", (5, 13), 16),
        static("static_4", (5, 13, 1, 29), 16),
        join("join_after_1", 1),
        join("join_after_3", 3),
        join("join_after_9", 9),
        join("join_shorter", 4, lengths=(29, 3), max_tokens=(14, 10)),
        Case("leave", [Row(prompt(f"leave.{n}", n), tokens) for n, tokens in leave]),
        Case("leave_stop", [
            Row(prompt("leave_stop.0", 21), 16, stop_at=5),
            Row(prompt("leave_stop.1", 7), 12),
        ]),
        Case("join_after_leave", [
            Row(prompt("join_after_leave.0", 29), 5),
            Row(prompt("join_after_leave.1", 5), 20),
            Row(prompt("join_after_leave.2", 9), 8, Start(0, 5)),
        ]),
        Case("granule", [
            Row(prompt("granule.0", 250), 16),
            Row(prompt("granule.1", 270), 8, Start(0, 3)),
        ]),
        Case("chunked", [
            Row(prompt("chunked.0", 5), 16),
            Row(prompt("chunked.1", 150), 8, Start(0, 2)),
        ], prefill_chunk_tokens=64),
    ]


def sliding():
    """For a window of 8: rows cross it in their prompts, while they decode, and before they join."""
    return [
        serial("serial_5", 5, 20),
        serial("serial_29", 29, 12),
        serial("serial_29_chunk_4", 29, 8, prefill_chunk_tokens=4),
        serial("serial_29_chunk_12", 29, 8, prefill_chunk_tokens=12),
        static("static_2", (5, 13), 14),
        static("static_4", (5, 13, 1, 29), 14),
        # The running row has 7, 8 and 9 tokens when the second one joins.
        *[join(f"join_at_{3 + after}", after, lengths=(3, 6)) for after in (4, 5, 6)],
        # Both rings have wrapped; after one of these both write the same column.
        *[join(f"join_wrapped_{after}", after, lengths=(13, 21)) for after in (6, 7, 8, 9, 10)],
        join("join_late_past_window", 3, lengths=(3, 29), max_tokens=(20, 12)),
        join("join_shorter", 6, lengths=(29, 3), max_tokens=(20, 16)),
        Case("churn", [
            Row(prompt("churn.0", 6), 9),
            Row(prompt("churn.1", 17), 5),
            Row(prompt("churn.2", 2), 14, Start(0, 3)),
            Row(prompt("churn.3", 11), 8, Start(0, 7)),
            Row(prompt("churn.4", 7), 12, Start(3, 2)),
        ]),
        Case("longest_leaves_first", [
            Row(prompt("longest_leaves_first.0", 29), 3),
            Row(prompt("longest_leaves_first.1", 4), 16),
            Row(prompt("longest_leaves_first.2", 2), 14),
        ]),
        Case("leave_stop", [
            Row(prompt("leave_stop.0", 21), 16, stop_at=5),
            Row(prompt("leave_stop.1", 7), 12),
        ]),
        *[
            Case(f"chunked_{chunk}", [
                Row(prompt(f"chunked_{chunk}.0", 5), 14),
                Row(prompt(f"chunked_{chunk}.1", 30), 10, Start(0, 2)),
            ], prefill_chunk_tokens=chunk)
            for chunk in (4, 12)
        ],
    ]


def few(**kwargs):
    """For the other checkpoints: their layers differ, the scheduling does not."""
    joined = join("join_after_3", 3, max_tokens=(12, 8))
    return [serial("serial_13", 13, 16), dataclasses.replace(joined, **kwargs)]


def family(**kwargs):
    """The behaviours that depend on a family's layers, for a window of 8 where there is one."""
    return [
        serial("serial_1", 1, 10),
        serial("serial_13", 13, 12),
        serial("serial_29_chunk_12", 29, 8, prefill_chunk_tokens=12),
        *[dataclasses.replace(case, **kwargs) for case in [
            static("static_2", (5, 13), 10),
            static("static_3", (5, 29, 1), 8),
            join("join_after_3", 3, lengths=(13, 21), max_tokens=(12, 8)),
            Case("join_after_leave", [
                Row(prompt("join_after_leave.0", 29), 3),
                Row(prompt("join_after_leave.1", 5), 14),
                Row(prompt("join_after_leave.2", 11), 6, Start(0, 3)),
            ]),
        ]],
    ]


def crossing():
    """Rows that cross a window of 8 while they share a batch: joiners inside it and past it, to a row that
    is inside it or has wrapped."""
    return [
        join("join_past_window", 3, lengths=(3, 29), max_tokens=(14, 8)),
        join("join_wrapped", 6, lengths=(13, 21), max_tokens=(16, 10)),
        join("join_shorter", 4, lengths=(29, 3), max_tokens=(14, 12)),
    ]


def quantized_full_layer(layer):
    """Quantized KV caches of a full layer alone: mlx-lm cannot quantize the others."""
    kv = [dict(layer_idx=layer, bits=8, group_size=32)]
    return [serial("kv_full_layer", 13, 16, kv=kv, prefill_chunk_tokens=8)]


def recurrent():
    """For recurrent layers beside full ones, with heads of 32: prompts that are handed to the device in
    several pieces, and KV caches that convert while the states stay."""

    def kv(bits, start_tokens):
        return dict(bits=bits, group_size=32, start_tokens=start_tokens)

    return [
        serial("serial_100", 100, 6),
        serial("serial_100_chunk_40", 100, 6, prefill_chunk_tokens=40),
        join("join_long", 3, lengths=(3, 70), max_tokens=(12, 6)),
        serial("kv_8", 13, 10, kv=kv(8, 0)),
        serial("kv_4_in_prompt", 40, 8, kv=kv(4, 20), prefill_chunk_tokens=16),
        serial("kv_8_in_answer", 3, 10, kv=kv(8, 6)),
    ]


def quantized_kv():
    """KV caches that convert at a prompt chunk's end, after the first step, and in mid-answer."""

    def case(name, length, max_tokens, kv, **kwargs):
        return serial(f"kv_{name}", length, max_tokens, kv=kv, **kwargs)

    def all_layers(bits, group_size, start_tokens=0):
        return dict(bits=bits, group_size=group_size, start_tokens=start_tokens)

    mixed = [
        dict(layer_idx=0, bits=8, group_size=32),
        dict(layer_idx=2, bits=3, group_size=128),
    ]
    return [
        case("4_g64", 13, 28, all_layers(4, 64)),
        case("8_g64", 13, 28, all_layers(8, 64)),
        case("4_g32_chunk_64", 150, 24, all_layers(4, 32), prefill_chunk_tokens=64),
        case("8_g32_granule", 250, 24, all_layers(8, 32)),
        case("4_g64_from_6_in_answer", 3, 24, all_layers(4, 64, 6)),
        case("8_g64_from_6_in_prompt", 13, 24, all_layers(8, 64, 6), prefill_chunk_tokens=5),
        case("8_g32_from_6_after_prompt", 6, 24, all_layers(8, 32, 6)),
        case("4_g32_one_token", 1, 24, all_layers(4, 32)),
        case("config", 29, 24, mixed, prefill_chunk_tokens=16),
    ]


def other_dtypes():
    return [serial("serial_13", 13, 16), static("static_4", (5, 13, 1, 29), 12)]
