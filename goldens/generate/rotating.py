"""What mlx-lm's rotating caches make of scripts of operations, without a model.

A column is a token's number: its key is the pair of its digits to base 256, exact in bf16, and its
value the negative of that, so what a cache holds is written down as numbers, 0 for zeros.
"""

import json
import random
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache


class Script:
    """Runs operations on numbered caches and notes what each one leads to.

    A cache is "solo" (RotatingKVCache) or "batch" (BatchRotatingKVCache, of one row at first, as
    BatchGenerator holds every row).
    """

    def __init__(self, name, window):
        self.name, self.window = name, window
        self.caches, self.kinds, self.steps = [], [], []
        self.next_number = 1

    def open(self, kind, keep=0):
        solo = RotatingKVCache(self.window, keep)
        self.add(kind, solo if kind == "solo" else BatchRotatingKVCache(self.window, [0]))
        return self.note(dict(op="open", kind=kind, keep=keep))

    def feed(self, cache, tokens):
        held, rows = self.caches[cache], self.rows(cache)
        columns = [[self.fresh() for _ in range(tokens)] for _ in range(rows)]
        keys = as_keys(columns)
        mask = held.make_mask(tokens, window_size=self.window)
        seen_keys, seen_values = held.update_and_fetch(keys, -keys)
        return self.note(
            dict(op="feed", cache=cache, columns=columns),
            mask=described(mask),
            seen=numbers(seen_keys, seen_values),
            **self.state(cache),
        )

    def steps_of_one(self, cache, count):
        for _ in range(count):
            self.feed(cache, 1)

    def extend(self, cache, joiner):
        self.caches[cache].extend(self.caches[joiner])
        self.caches[joiner] = None
        self.note(dict(op="extend", cache=cache, joiner=joiner), **self.state(cache))

    def merge(self, caches):
        merged = BatchRotatingKVCache.merge([self.caches[cache] for cache in caches])
        for cache in caches:
            self.caches[cache] = None
        cache = self.add("batch", merged)
        self.note(dict(op="merge", caches=caches), **self.state(cache))
        return cache

    def filter(self, cache, keep):
        self.caches[cache].filter(keep)
        self.note(dict(op="filter", cache=cache, keep=keep), **self.state(cache))

    def extract(self, cache, row):
        lone = self.caches[cache].extract(row)
        self.add("solo", lone)
        return self.note(
            dict(op="extract", cache=cache, row=row),
            held=numbers(lone.keys, lone.values)[0],
            **self.state(len(self.caches) - 1),
        )

    def trim(self, cache, tokens):
        trimmed = self.caches[cache].trim(tokens)
        assert trimmed == tokens, (trimmed, tokens)
        self.note(dict(op="trim", cache=cache, tokens=tokens), **self.state(cache))

    def add(self, kind, cache):
        self.caches.append(cache)
        self.kinds.append(kind)
        return len(self.caches) - 1

    def note(self, operation, **outcome):
        self.steps.append(dict(operation, **outcome))
        return len(self.caches) - 1

    def fresh(self):
        self.next_number += 1
        return self.next_number - 1

    def rows(self, cache):
        held = self.caches[cache]
        return 1 if self.kinds[cache] == "solo" else held.offset.shape[0]

    def offsets(self, cache):
        held = self.caches[cache]
        return [held.offset] if self.kinds[cache] == "solo" else held.offset.tolist()

    def state(self, cache):
        held = self.caches[cache]
        padding = {} if self.kinds[cache] == "solo" else dict(left_padding=held.left_padding.tolist())
        return dict(offsets=self.offsets(cache), can_trim=held.is_trimmable(), **padding)


def as_keys(columns):
    digits = [[[number // 256, number % 256] for number in row] for row in columns]
    return mx.array(digits, dtype=mx.bfloat16)[:, None]


def numbers(keys, values):
    """[B, 1, S, 2] back to numbers."""
    assert bool(mx.array_equal(keys, -values))
    pairs = keys[:, 0].astype(mx.int32)
    return (pairs[..., 0] * 256 + pairs[..., 1]).tolist()


def described(mask):
    """None, "causal", or one string of 0s and 1s per query: per row of the batch if it has rows."""
    if mask is None or isinstance(mask, str):
        return mask
    if mask.ndim == 1:
        mask = mask[None]
    rows = mask[:, 0].tolist() if mask.ndim == 4 else [mask.tolist()]
    return [["".join("01"[seen] for seen in query) for query in row] for row in rows]


def solo(window, keep, prompts):
    script = Script(f"solo_{window}_keep_{keep}", window)
    for prompt in prompts:
        cache = script.open("solo", keep)
        script.feed(cache, prompt)
        script.feed(cache, 3)
        if script.caches[cache].is_trimmable():
            script.trim(cache, 2)
        script.steps_of_one(cache, 2 * window + 3)
        script.feed(cache, window + 2)
        script.steps_of_one(cache, window + 1)
        script.feed(cache, 2)
    return script


def join(window, running, joiner):
    """`running` columns meet `joiner` ones; two wraps later the rows part again."""
    script = Script(f"join_{window}_at_{running}_{joiner}", window)
    caches = []
    for columns in (running, joiner):
        cache = script.open("batch")
        if columns > 1:
            script.feed(cache, columns - 1)
        script.feed(cache, 1)
        caches.append(cache)
    script.extend(*caches)
    script.steps_of_one(caches[0], 2 * window + 2)
    for row in (0, 1):
        lone = script.extract(caches[0], row)
        script.steps_of_one(lone, 2)
    script.filter(caches[0], [1])
    script.steps_of_one(caches[0], window)
    return script


def wander(seed, window):
    """Random operations on batches that stay small."""
    script, chance = Script(f"wander_{window}_{seed}", window), random.Random(seed)
    batch = script.open("batch")
    script.feed(batch, chance.randint(1, 2 * window))
    for _ in range(24):
        choice, rows = chance.random(), script.rows(batch)
        if choice < 0.5:
            script.feed(batch, 1)
        elif choice < 0.6:
            # In a rotated ring its mask for several tokens hides one column too many of a padded row.
            held = script.caches[batch]
            padded = held.rotated and max(held.left_padding.tolist()) > 0
            script.feed(batch, 1 if padded else chance.randint(2, window + 2))
        elif choice < 0.8 and rows < 4:
            joiner = script.open("batch")
            script.feed(joiner, chance.randint(1, 2 * window))
            # Rows decode when they meet: a ring that still holds a chunk would give the other's
            # overwritten padding new columns that count as its own.
            script.steps_of_one(joiner, chance.randint(1, 2))
            if script.caches[batch].keys.shape[2] > window:
                script.feed(batch, 1)
            script.extend(batch, joiner)
        elif choice < 0.85:
            batch = script.merge([script.extract(batch, row) for row in range(rows)])
        elif choice < 0.9 and script.caches[batch].is_trimmable():
            script.trim(batch, chance.randint(0, min(script.offsets(batch)) - 1))
        elif rows > 1:
            script.filter(batch, sorted(chance.sample(range(rows), chance.randint(1, rows - 1))))
    for row in range(script.rows(batch)):
        script.extract(batch, row)
    return script


def generate(out: Path, versions):
    scripts = [solo(window, keep, (1, 3, 5, 11)) for window, keep in [(5, 0), (5, 2), (6, 4)]]
    window = 5
    for columns in (window - 1, window, window + 1, 2 * window + 1):
        scripts += [join(window, columns, joiner) for joiner in (1, window, window + 4)]
    # Both rotated, at the same column and not.
    scripts += [join(window, columns, window + 2) for columns in (window + 2, 2 * window + 2)]
    scripts += [wander(seed, window) for window in (3, 4, 7) for seed in range(5)]
    write(out / "rotating.json", scripts, versions)
    print(f"rotating: {len(scripts)} scripts, {sum(len(s.steps) for s in scripts)} steps")


def write(path, scripts, versions):
    """One step a line."""
    compact = dict(separators=(",", ":"))
    lines = [
        "{" + f'"name":{json.dumps(script.name)},"window":{script.window},"steps":[\n'
        + ",\n".join(json.dumps(step, **compact) for step in script.steps) + "]}"
        for script in scripts
    ]
    head = f'{{"versions":{json.dumps(versions)},\n"scripts":[\n'
    path.write_text(head + ",\n".join(lines) + "]}\n", encoding="utf-8")
