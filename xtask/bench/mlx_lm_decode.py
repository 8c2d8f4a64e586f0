"""How fast mlx-lm decodes: the other side of `cargo xtask bench`.

For each batch size, that many prompts of random token ids go into one BatchGenerator. The clock
starts when every row has given its first token, and stops when every row has given its last, so
only decode steps count. Greedy, float32, on the CPU (on a Mac: MLX's default device), no stop tokens.

Prints {"cells": [{"rows": 1, "decode_tokens_per_second": 16.0}, ...]}.
"""

import argparse
import json
import platform
import random
import time

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of the model")
    parser.add_argument("--batch", required=True, help="batch sizes, as 1,4,8")
    parser.add_argument("--prompt-tokens", type=int, required=True, help="length of each prompt")
    parser.add_argument("--tokens", type=int, required=True, help="tokens to generate per row")
    return parser.parse_args()


def decode_tokens_per_second(model, prompts, tokens):
    generator = BatchGenerator(
        model, completion_batch_size=len(prompts), prefill_batch_size=len(prompts)
    )
    waiting = set(generator.insert(prompts, [tokens] * len(prompts)))
    while waiting:
        waiting -= {response.uid for response in generator.next_generated()}
    start = time.perf_counter()
    count = 0
    while responses := generator.next_generated():
        count += len(responses)
    seconds = time.perf_counter() - start
    generator.close()
    assert count == len(prompts) * (tokens - 1), f"{count} tokens are not of decode steps alone"
    return count / seconds


def main():
    options = arguments()
    if platform.system() == "Linux":
        mx.set_default_device(mx.cpu)
    model, tokenizer = load(options.model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    numbers = random.Random(0)
    cells = []
    for rows in map(int, options.batch.split(",")):
        prompts = [
            [numbers.randrange(tokenizer.vocab_size) for _ in range(options.prompt_tokens)]
            for _ in range(rows)
        ]
        speed = decode_tokens_per_second(model, prompts, options.tokens)
        cells.append({"rows": rows, "decode_tokens_per_second": speed})
    print(json.dumps({"cells": cells}))


if __name__ == "__main__":
    main()
