"""Pipe worker for libraries that other interpreters have; it needs none of this repository's modules.

One argument, JSON: {"peer": one of PEERS, "model": DIRECTORY, "threads": N}; an export is stored next to the model.

    genai, optimum                     {"prompts": [[id, …], …], "max_tokens": N} → {"seconds", "tokens": of each}
    transformers-embed, optimum-embed  {"texts": [[id, …], …]} → {"seconds", "vectors": means of the last states}

An empty line of input, {}, is answered when the model is open. Prompts of a batch are answered greedily, all rows until
the same length; shorter ones are padded at the end, which of genai's models only those that keep the logits of all
positions answer correctly. No answer ends earlier than `max_tokens` unless it generates the end token. All texts are
one batch, padded to the longest.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = Callable[..., dict[str, Any]]


def genai(directory: str, threads: int) -> Answer:
    import numpy as np

    library = importlib.import_module("onnxruntime_genai")
    config = library.Config(directory)
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = library.Model(config)

    def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        width = max(map(len, prompts))
        tokens = np.zeros((len(prompts), width), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        began_s = time.perf_counter()
        params = library.GeneratorParams(model)
        # The caches are as long as the longest answer may be: roomier ones cost time.
        params.set_search_options(max_length=width + max_tokens, batch_size=len(prompts), do_sample=False)
        generator = library.Generator(model, params)
        generator.append_tokens(tokens)
        while not generator.is_done():
            generator.generate_next_token()
        seconds = time.perf_counter() - began_s
        return {
            "seconds": seconds,
            "tokens": [generator.get_sequence(row)[width:].tolist() for row in range(len(prompts))],
        }

    return generate


def _optimum(kind: str, directory: str, threads: int) -> Any:
    """A model of optimum-onnx, which exports it itself."""
    import onnxruntime as ort

    library = getattr(importlib.import_module("optimum.onnxruntime"), kind)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    kept = Path(directory).with_name(f"{Path(directory).name}-optimum")
    if not kept.exists():
        library.from_pretrained(directory, export=True).save_pretrained(kept)
    return library.from_pretrained(kept, session_options=options)


def optimum(directory: str, threads: int) -> Answer:
    import torch

    torch.set_num_threads(threads)
    model = _optimum("ORTModelForCausalLM", directory, threads)

    def generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        tokens = torch.tensor(prompts)
        mask = torch.ones_like(tokens)
        began_s = time.perf_counter()
        answers = model.generate(
            tokens, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        seconds = time.perf_counter() - began_s
        return {"seconds": seconds, "tokens": answers[:, tokens.shape[1] :].tolist()}

    return generate


def _embedding(states: Callable[[Any, Any], Any]) -> Answer:
    """states: ids and mask (B, S) → last states (B, S, M)."""
    import torch

    def embed(texts: list[list[int]]) -> dict[str, Any]:
        began_s = time.perf_counter()
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
        with torch.inference_mode():
            weights = mask[..., None].float()
            vectors = (states(ids, mask) * weights).sum(1) / weights.sum(1)
        return {"seconds": time.perf_counter() - began_s, "vectors": vectors.tolist()}

    return embed


def transformers_embed(directory: str, threads: int) -> Answer:
    import torch
    from transformers import AutoModel

    torch.set_num_threads(threads)
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    return _embedding(lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state)


def optimum_embed(directory: str, threads: int) -> Answer:
    model = _optimum("ORTModelForFeatureExtraction", directory, threads)
    return _embedding(
        lambda ids, mask: model(input_ids=ids, attention_mask=mask, token_type_ids=ids * 0).last_hidden_state
    )


PEERS = {
    "genai": genai,
    "optimum": optimum,
    "transformers-embed": transformers_embed,
    "optimum-embed": optimum_embed,
}


def main() -> None:
    asked, answers = json.loads(sys.argv[1]), sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # the exporters print
        answer = PEERS[asked["peer"]](asked["model"], asked["threads"])
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(answer(**order) if order else {}), file=answers, flush=True)


if __name__ == "__main__":
    main()
