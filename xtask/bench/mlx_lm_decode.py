"""How fast mlx-lm decodes, and what a step costs its host: the other side of `cargo xtask bench`.

For each batch size, that many prompts of random token ids go into one BatchGenerator. The clock
starts when every row has given its first token, and stops when every row has given its last, so
only decode steps count. Greedy, float32, on the CPU (on a Mac: MLX's default device), no stop tokens.

The host's cost of a step is taken in two ways, as `slipstream bench` takes its own:
- host_cpu_ms: processor time of the thread that calls `next_generated`, waits of any kind left out.
  MLX computes on threads of its own, so this is Python, the graph and its dispatch. The mean.
- build_ms: time that passes in `next_generated`, without what passes in `mx.async_eval` (on a
  processor, dispatching waits for the step's own computations) and in `mx.eval` (the blocking
  read): the graph, sampling and the responses. The median.

Prints {"cells": [{"rows": 1, "decode_tokens_per_second": 16.0, "host_cpu_ms": 3.0,
"build_ms": 2.0}, ...]}.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

# Repairs how mlx-lm calls for packed experts, which it does wrongly with its own pinned mlx.
sys.path.append(str(Path(__file__).parents[2] / "goldens/generate"))
import oracle  # noqa: E402, F401


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, type=Path, help="directory of the model")
    parser.add_argument("--batch", required=True, help="batch sizes, as 1,4,8")
    parser.add_argument("--prompt-tokens", type=int, required=True, help="length of each prompt")
    parser.add_argument("--tokens", type=int, required=True, help="tokens to generate per row")
    return parser.parse_args()


class Outside:
    """Sums the seconds that pass in calls which hand work to the device or wait for it."""

    def __init__(self):
        self.seconds = 0.0
        mx.async_eval = self.timed(mx.async_eval)
        mx.eval = self.timed(mx.eval)

    def timed(self, function):
        def call(*arguments):
            start = time.perf_counter()
            function(*arguments)
            self.seconds += time.perf_counter() - start

        return call


def measure(model, prompts, tokens, outside):
    generator = BatchGenerator(
        model, completion_batch_size=len(prompts), prefill_batch_size=len(prompts)
    )
    waiting = set(generator.insert(prompts, [tokens] * len(prompts)))
    while waiting:
        waiting -= {response.uid for response in generator.next_generated()}
    count, builds = 0, []
    start, busy = time.perf_counter(), time.thread_time()
    while True:
        began, before = time.perf_counter(), outside.seconds
        responses = generator.next_generated()
        if not responses:
            break
        count += len(responses)
        builds.append(time.perf_counter() - began - (outside.seconds - before))
    seconds, busy = time.perf_counter() - start, time.thread_time() - busy
    generator.close()
    assert count == len(prompts) * (tokens - 1), f"{count} tokens are not of decode steps alone"
    return {
        "rows": len(prompts),
        "decode_tokens_per_second": count / seconds,
        "host_cpu_ms": busy * 1e3 / len(builds),
        "build_ms": statistics.median(builds) * 1e3,
    }


def main():
    options = arguments()
    if platform.system() == "Linux":
        mx.set_default_device(mx.cpu)
    model, config = load_model(options.model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    vocabulary = config.get("text_config", config)["vocab_size"]
    outside = Outside()
    numbers = random.Random(0)
    cells = []
    for rows in map(int, options.batch.split(",")):
        prompts = [
            [numbers.randrange(vocabulary) for _ in range(options.prompt_tokens)]
            for _ in range(rows)
        ]
        cells.append(measure(model, prompts, options.tokens, outside))
    print(json.dumps({"cells": cells}))


if __name__ == "__main__":
    main()
