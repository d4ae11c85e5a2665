"""Pipe worker that embeds texts with transformers or optimum-onnx. `compare_embed` starts it, possibly with an
interpreter without Glossa.

One argument, JSON: {"peer": "transformers" or "optimum", "model": DIRECTORY of a Hugging Face model, "threads": N};
optimum's export is stored next to it. Then a line of input is {"texts": token ids of each}, a line of output
{"seconds": …, "vectors": the mean of the last states of each text}. All texts are one batch, padded to the longest.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # ids and mask (B, S) → states (B, S, M)


def open_transformers(directory: Path, threads: int) -> Embed:
    from transformers import AutoModel

    torch.set_num_threads(threads)
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state


def open_optimum(directory: Path, threads: int) -> Embed:
    import onnxruntime
    from optimum.onnxruntime import ORTModelForFeatureExtraction  # type: ignore[import-not-found]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    kept = directory.with_name(f"{directory.name}-optimum")
    if not kept.exists():
        ORTModelForFeatureExtraction.from_pretrained(directory, export=True).save_pretrained(kept)
    model = ORTModelForFeatureExtraction.from_pretrained(kept, session_options=options)
    zeros = torch.zeros_like
    return lambda ids, mask: model(input_ids=ids, attention_mask=mask, token_type_ids=zeros(ids)).last_hidden_state


def embed(run: Embed, texts: list[list[int]]) -> dict[str, Any]:
    began_s = time.perf_counter()
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    with torch.inference_mode():
        weights = mask[..., None].float()
        vectors = (run(ids, mask) * weights).sum(1) / weights.sum(1)
    return {"seconds": time.perf_counter() - began_s, "vectors": vectors.tolist()}


def main() -> None:
    asked, answers = json.loads(sys.argv[1]), sys.stdout
    opening = {"transformers": open_transformers, "optimum": open_optimum}[asked["peer"]]
    with contextlib.redirect_stdout(sys.stderr):  # the exporter talks
        run = opening(Path(asked["model"]), asked["threads"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(embed(run, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
