"""Embedding throughput against transformers and optimum-onnx with the same float32 weights.

    glossa, in-process    the engines of a server without gRPC
    glossa, gRPC          a server in a separate process, a client in this one, one call per text
    transformers          PyTorch, all texts as one batch, padded to the longest
    optimum               ONNX Runtime as optimum-onnx uses it, the same batch

The model is a random BERT of the base size; all use as many threads as there are processors and run
interleaved. Vectors are compared before speed.


PYTHON is an interpreter that has optimum-onnx; without one it is not measured. DIRECTORY stores the models; --prepare
only creates them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import case
from bench.engines import Engines
from bench.measure import Verdict, interleaved, report, seconds
from bench.pipe import Pipe
from cli.local_server import serving
from export.bundle.directory import load_bundle
from export.to_onnx import export_model
from glossa.client import AsyncClient
from model.architectures import build
from model.pretrained.import_checkpoint import import_model
from model.tokenizer import SPECIAL, Tokenizer
from service.encoder_request import EncoderRequest
from service.request import Request
from service.runtime.runner import OnnxModel

PEER, BUNDLE = "bert", "bundle"
WORKER = Path(__file__).with_name("peer_worker.py")
SHORTEST, LONGEST = 8, 128  # tokens of a text, those around it included
BARS = {"transformers": 1.5, "optimum": 1.0}
REST_S = 0.3  # between two contestants: threads of the last one may still look for work
NEAR = 1e-3  # vectors of different libraries

Ids = list[int]


def prepare(directory: Path, layers: int, width: int, words: int) -> None:
    """A random model in Hugging Face's form, and the bundle made of it."""
    import torch
    from transformers import BertConfig, BertModel

    if (directory / BUNDLE).exists():
        return
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    peer = directory / PEER
    BertModel(config).eval().save_pretrained(peer)
    (peer / "vocab.txt").write_text("\n".join([*SPECIAL, *map(_word, range(words - len(SPECIAL)))]))
    names = {"pad_token": "<pad>", "cls_token": "<bos>", "sep_token": "<eos>", "unk_token": "<unk>"}
    (peer / "tokenizer_config.json").write_text(json.dumps(names))
    imported = import_model(peer)
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    export_model(model, tokenizer_of(words), directory / BUNDLE)


def _word(number: int) -> str:
    return f"w{number}"


def tokenizer_of(words: int) -> Tokenizer:
    """One token for each word."""
    return Tokenizer.train([_word(number) for number in range(words - len(SPECIAL))], kind="words", vocab_size=words)


def texts_of(count: int, words: int) -> list[str]:
    """Of all lengths between SHORTEST and LONGEST, in no order."""
    rng = random.Random(2)
    lengths = [SHORTEST + (LONGEST - SHORTEST) * place // max(count - 1, 1) for place in range(count)]
    rng.shuffle(lengths)
    return [" ".join(_word(rng.randrange(words - len(SPECIAL))) for _ in range(length - 2)) for length in lengths]


def open_peer(peer: str, python: str, directory: Path, threads: int) -> Pipe:
    """A peer of `bench.peer_worker`, ready."""
    asked = {"peer": f"{peer}-embed", "model": str(directory), "threads": threads}
    pipe = Pipe(peer, [python, str(WORKER), json.dumps(asked)], {**os.environ, "OMP_NUM_THREADS": str(threads)})
    pipe()
    return pipe


def in_process(engines: Engines, texts: Sequence[Ids]) -> list[np.ndarray]:
    reading = EncoderRequest(pooling="mean")
    requests = [
        Request(request_id=str(number), source=tuple(ids), prompt=(), max_tokens=0, encoder_request=reading)
        for number, ids in enumerate(texts)
    ]
    outputs = [answer.encoder_output for answer in engines.answer(requests)]
    return [output.vector for output in outputs if output is not None and output.vector is not None]


async def through_grpc(address: str, texts: Sequence[str]) -> list[list[float]]:
    async with AsyncClient(address) as client:
        return list(await asyncio.gather(*(client.embed(text) for text in texts)))


@case("directory", peer_python="", texts=64, repeats=5, layers=12, width=768, words=30522, prepare=False)
def compare_embed(options: argparse.Namespace) -> None:
    prepare(options.directory, options.layers, options.width, options.words)
    if options.prepare:
        if options.peer_python:
            open_peer("optimum", options.peer_python, options.directory / PEER, 1).close()
        return
    texts = texts_of(options.texts, options.words)
    tokenizer, threads = tokenizer_of(options.words), os.cpu_count() or 1
    ids = [[1, *tokenizer.encode(text), 2] for text in texts]
    assert {len(text) for text in ids} <= set(range(SHORTEST, LONGEST + 1))
    skipped = {} if options.peer_python else {"optimum": "no interpreter was named that has it"}
    with contextlib.ExitStack() as stack:
        model = OnnxModel.open(options.directory / BUNDLE, load_bundle(options.directory / BUNDLE), device="cpu")
        runners = [model.runner(max_rows=64) for _ in range(threads)]
        engines = stack.enter_context(Engines(runners, tokenizer_of(len(SPECIAL) + 1)))
        address, _ = stack.enter_context(serving(options.directory / BUNDLE))
        pythons = {"transformers": sys.executable, "optimum": options.peer_python}
        peers = {
            name: stack.enter_context(open_peer(name, python, options.directory / PEER, threads))
            for name, python in pythons.items()
            if python
        }
        few = ids[:4]
        wanted = np.array(peers["transformers"](texts=few)["vectors"])
        result: dict[str, Any] = {
            "glossa, in-process": in_process(engines, few),
            "glossa, gRPC": asyncio.run(through_grpc(address, texts[:4])),
            **{name: peer(texts=few)["vectors"] for name, peer in peers.items()},
        }
        for name, vectors in result.items():
            off = float(np.abs(np.array(vectors) - wanted).max())
            assert off < NEAR, f"{name} is {off} off"

        def timed(ask: Callable[[], Any]) -> Callable[[], float]:
            def job() -> float:
                time.sleep(REST_S)
                return len(texts) / seconds(ask)

            return job

        jobs = {
            "glossa, in-process": timed(lambda: in_process(engines, ids)),
            "glossa, gRPC": timed(lambda: asyncio.run(through_grpc(address, texts))),
        }
        for name, peer in peers.items():
            jobs[name] = lambda peer=peer: len(ids) / peer(texts=ids)["seconds"]  # type: ignore[misc]
        figures = interleaved(jobs, options.repeats)
    verdicts = [
        Verdict(f"{ours} against {name}, texts per second", figures[ours].median / figures[name].median, BARS[name])
        for name in peers
        for ours in ("glossa, in-process", "glossa, gRPC")
    ]
    differences = {name: float(np.abs(np.array(vectors) - wanted).max()) for name, vectors in result.items()}
    report(
        {**figures, "largest difference from transformers": differences, "tokens": sum(map(len, ids))},
        verdicts,
        as_json=options.json,
        skipped=skipped,
    )
