"""Rows that share a batch, end, and go on later from the caches that came out of it."""

import copy

import cases
import checkpoint
import mlx.core as mx
import oracle
from mlx_lm.generate import BatchGenerator

# Tokens of the prompt, of the answer, of what is said next, and of the answer to that.
ROWS = [(5, 6, 3, 8), (13, 11, 9, 6), (1, 4, 1, 8)]


def generate(directory, name, model, versions):
    rows = [
        dict(prompt=cases.prompt(f"continued.{index}", prompt), answer_tokens=answer,
             then=cases.prompt(f"then.{index}", then), max_tokens=tokens)
        for index, (prompt, answer, then, tokens) in enumerate(ROWS)
    ]
    ended = run(model, [(row["prompt"], row["answer_tokens"], None) for row in rows])
    resumed = [
        (row["then"], row["max_tokens"], end) for row, (_, end) in zip(rows, ended)
    ]
    together = run(model, resumed)
    for index, (row, (outcome, _)) in enumerate(zip(rows, together)):
        (alone, _), = run(model, resumed[index : index + 1])
        # So it does not matter when the others join.
        assert outcome.tokens == alone.tokens and mx.array_equal(outcome.logits, alone.logits)
        row["answer"], row["tokens"] = ended[index][0].tokens, outcome.tokens
        print(f"{name} continued.{index} {outcome.tokens}", flush=True)
    described = dict(model=name, versions=versions, rows=rows)
    checkpoint.write_json(directory / "continued.json", described)
    logits = {str(index): outcome.logits for index, (outcome, _) in enumerate(together)}
    mx.save_safetensors(str(directory / "continued.safetensors"), logits)


def run(model, rows):
    """What rows of (prompt, max_tokens, end of an earlier run) say in one batch, and how they end."""
    recorded, runs, ends = oracle.RecordedModel(model), {}, {}
    generator = BatchGenerator(recorded, prefill_batch_size=1)
    with oracle.RecordedSteps(recorded, runs):
        for prompt, max_tokens, start in rows:
            before = {}
            if start:
                before = dict(
                    caches=[copy.deepcopy(start.prompt_cache)], all_tokens=[list(start.all_tokens)]
                )
            generator.insert([list(prompt)], [max_tokens], **before)
        while len(ends) < len(rows):
            for response in generator.next()[1]:
                runs[response.uid].tokens.append(response.token)
                if response.finish_reason:
                    ends[response.uid] = response
    generator.close()
    return [(runs[uid].settle(), ends[uid]) for uid in sorted(ends)]
