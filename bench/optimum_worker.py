"""Pipe worker for optimum-onnx, its only dependency. `compare_optimum` starts it with an interpreter that has it.

One argument, JSON: {"model": DIRECTORY of a Hugging Face model, "threads": N}; the export is stored next to it.
Lines of input and output are those of `genai_worker`, prompts of one length only.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch


def open_model(directory: Path, threads: int) -> Any:
    from optimum.onnxruntime import ORTModelForCausalLM  # type: ignore[import-not-found]

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    kept = directory.with_name(f"{directory.name}-optimum")
    if not kept.exists():
        ORTModelForCausalLM.from_pretrained(directory, export=True).save_pretrained(kept)
    return ORTModelForCausalLM.from_pretrained(kept, session_options=options)


def generate(model: Any, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    tokens = torch.tensor(prompts)
    began_s = time.perf_counter()
    answers = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    seconds = time.perf_counter() - began_s
    return {"seconds": seconds, "tokens": answers[:, tokens.shape[1] :].tolist()}


def main() -> None:
    asked, answers = json.loads(sys.argv[1]), sys.stdout
    torch.set_num_threads(asked["threads"])
    with contextlib.redirect_stdout(sys.stderr):  # the exporter talks
        model = open_model(Path(asked["model"]), asked["threads"])
    print(json.dumps({"ready": ort.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(model, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
