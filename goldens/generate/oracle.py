"""What mlx-lm makes of a case: the tokens and the raw logits of each."""

import contextlib
import sys
from unittest import mock

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, generate_step


def _without_global_scale(gather_qmm):
    """mlx-lm 0.32.2 hands packed experts an argument that mlx 0.32.2 does not know yet, always None."""

    def gather(*args, global_scale=None, **kwargs):
        assert global_scale is None
        return gather_qmm(*args, **kwargs)

    return gather


mx.gather_qmm = _without_global_scale(mx.gather_qmm)


class Run:
    """One row's outcome. `logits[k]` is what token k was taken from, before the log-sum-exp."""

    def __init__(self):
        self.tokens = []
        self.logits = []
        self.finish = None

    def settle(self):
        """Drops the forward that was in flight when the row ended, and checks the pairing."""
        self.logits = mx.stack(self.logits[: len(self.tokens)])
        normalized = self.logits - mx.logsumexp(self.logits, axis=-1, keepdims=True)
        taken = mx.argmax(normalized, axis=-1).tolist()
        assert taken == self.tokens, (taken, self.tokens)
        return self


def serial(model, row, prefill_chunk_tokens, kv=None):
    run = Run()

    def keep(_, logits):
        run.logits.append(logits[0])
        return logits

    run.finish = "length"
    with converted_by(kv if isinstance(kv, list) else None):
        steps = generate_step(
            mx.array(row.prompt),
            model,
            max_tokens=row.max_tokens,
            logits_processors=[keep],
            prefill_step_size=prefill_chunk_tokens,
            **(kv_arguments(kv) if isinstance(kv, dict) else {}),
        )
        for token, _ in steps:
            run.tokens.append(token)
            if token in row.stop_tokens:
                run.finish = "stop"
                break
    return run.settle()


def kv_arguments(kv):
    return dict(
        kv_bits=kv["bits"], kv_group_size=kv["group_size"], quantized_kv_start=kv["start_tokens"]
    )


def converted_by(layers):
    """Has generate_step convert the caches of these layers, each in its own way, once they hold
    something; mlx-lm itself converts all layers alike."""

    def convert(prompt_cache, **_):
        for layer in layers:
            cache = prompt_cache[layer["layer_idx"]]
            if hasattr(cache, "to_quantized") and cache.offset > 0:
                cache = cache.to_quantized(group_size=layer["group_size"], bits=layer["bits"])
                prompt_cache[layer["layer_idx"]] = cache

    if layers is None:
        return contextlib.nullcontext()
    # The package's attribute of that name is a function of the module.
    module = sys.modules[generate_step.__module__]
    return mock.patch.object(module, "maybe_quantize_kv_cache", convert)


class RecordedModel:
    """Passes calls on and keeps the last logits."""

    def __init__(self, model):
        self.model = model
        self.logits = None

    def __call__(self, *args, **kwargs):
        self.logits = self.model(*args, **kwargs)
        return self.logits

    def __getattr__(self, name):
        return getattr(self.model, name)


class RecordedSteps:
    """While active, every decode step files its logits under the row they belong to."""

    def __init__(self, model, runs):
        self.model, self.runs = model, runs

    def __enter__(self):
        self.step = GenerationBatch._step

        def step(batch):
            result = self.step(batch)
            # A row leaves only after the step, so the order of uids is that of the logits.
            for position, uid in enumerate(batch.uids):
                self.runs.setdefault(uid, Run()).logits.append(self.model.logits[position, -1])
            return result

        GenerationBatch._step = step

    def __exit__(self, *_):
        GenerationBatch._step = self.step


def continuous(model, case):
    """Runs the rows of `case` in one BatchGenerator; prompts are prefilled one at a time."""
    recorded, runs, uids = RecordedModel(model), {}, {}
    generator = BatchGenerator(
        recorded, prefill_batch_size=1, prefill_step_size=case.prefill_chunk_tokens
    )
    with RecordedSteps(recorded, runs):
        while len(uids) < len(case.rows) or any(runs[uid].finish is None for uid in uids.values()):
            submit(generator, case, runs, uids)
            for response in generator.next()[1]:
                runs[response.uid].tokens.append(response.token)
                runs[response.uid].finish = response.finish_reason
    generator.close()
    return [runs[uids[index]].settle() for index in range(len(case.rows))]


def submit(generator, case, runs, uids):
    """Inserts the rows whose time has come, in order."""
    from mlx_lm.generate import StopSequences

    for index, row in enumerate(case.rows):
        start = row.start
        if index in uids or (start and start.after_row not in uids):
            continue
        if start and len(runs[uids[start.after_row]].tokens) < start.after_tokens:
            continue
        stops = StopSequences([[token] for token in row.stop_tokens] or None)
        (uid,) = generator.insert([row.prompt], [row.max_tokens], stop_sequences=[stops])
        uids[index] = uid
        runs[uid] = Run()
