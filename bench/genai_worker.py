"""Pipe worker for onnxruntime-genai, its only dependency. `compare_genai` starts it with an interpreter that has it.

One argument, JSON: {"model": DIRECTORY, "threads": N}. Each line of input is a batch, {"prompts": [[id, …], …],
"max_tokens": N}, which is answered greedily by one Generator, all rows until the same length; each line of output
{"seconds": S, "prefill_s": S, "tokens": [[id, …], …]}. Shorter prompts are padded at the end, which only
models that keep the logits of all positions answer correctly. No answer ends earlier than
`max_tokens` unless it generates the end token.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime_genai as genai  # type: ignore[import-not-found]


def open_model(directory: str, threads: int) -> Any:
    config = genai.Config(directory)
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    return genai.Model(config)


def generate(model: Any, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    width = max(map(len, prompts))
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    began_s = time.perf_counter()
    params = genai.GeneratorParams(model)
    # The caches are as long as the longest answer may be: roomier ones cost time.
    params.set_search_options(max_length=width + max_tokens, batch_size=len(prompts), do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(tokens)
    read_s = time.perf_counter()
    while not generator.is_done():
        generator.generate_next_token()
    ended_s = time.perf_counter()
    answers = [generator.get_sequence(row)[width:].tolist() for row in range(len(prompts))]
    return {"seconds": ended_s - began_s, "prefill_s": read_s - began_s, "tokens": answers}


def main() -> None:
    asked = json.loads(sys.argv[1])
    model = open_model(asked["model"], asked["threads"])
    print(json.dumps({"ready": genai.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(model, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
