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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import case
from bench.measure import Verdict, interleaved, report
from cli.local_server import serving
from export.bundle import load_bundle
from export.to_onnx import export_model
from glossa.client import AsyncClient
from model.architectures import build
from model.pretrained.import_checkpoint import import_model
from model.tokenizer import SPECIAL, Tokenizer
from service.encoder_request import EncoderRequest
from service.engine.engine import Engine, EngineConfig
from service.engine.pool import EnginePool
from service.engine.scheduler import SchedulerConfig
from service.request import Finished, Request
from service.runtime.runner import OnnxModel

PEER, BUNDLE = "bert", "bundle"
WORKER = Path(__file__).with_name("embed_worker.py")
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


class Peer:
    """`embed_worker` in a process of its own."""

    def __init__(self, peer: str, python: str, directory: Path, threads: int) -> None:
        asked = {"peer": peer, "model": str(directory), "threads": threads}
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [python, str(WORKER), json.dumps(asked)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert json.loads(self._answer())["ready"]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        raise RuntimeError(f"a peer ended with {self._process.wait()}")

    def __call__(self, texts: Sequence[Ids]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"texts": texts}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._answer())
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def engines(bundle: Path, count: int) -> Iterator[EnginePool]:
    """What a server has behind its edge."""
    model = OnnxModel.open(bundle, load_bundle(bundle), device="cpu")
    config = EngineConfig(scheduler=SchedulerConfig(max_rows=64))
    pool = EnginePool([Engine(model.runner(max_rows=64), tokenizer_of(len(SPECIAL) + 1), config) for _ in range(count)])
    pool.start()
    try:
        yield pool
    finally:
        pool.close()


async def in_process(pool: EnginePool, texts: Sequence[Ids]) -> list[np.ndarray]:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in texts]
    for number, (ids, future) in enumerate(zip(texts, futures, strict=True)):
        reading = EncoderRequest(pooling="mean")
        request = Request(request_id=str(number), source=tuple(ids), prompt=(), max_tokens=0, encoder_request=reading)
        pool.submit(request, loop, lambda event, future=future: future.set_result(event))
    vectors: list[np.ndarray] = []
    for event in await asyncio.gather(*futures):
        assert isinstance(event, Finished), event
        assert event.encoder_output is not None
        assert event.encoder_output.vector is not None
        vectors.append(event.encoder_output.vector)
    return vectors


async def through_grpc(address: str, texts: Sequence[str]) -> list[list[float]]:
    async with AsyncClient(address) as client:
        return list(await asyncio.gather(*(client.embed(text) for text in texts)))


@case("directory", peer_python="", texts=64, repeats=5, layers=12, width=768, words=30522, prepare=False)
def compare_embed(options: argparse.Namespace) -> None:
    prepare(options.directory, options.layers, options.width, options.words)
    if options.prepare:
        if options.peer_python:
            Peer("optimum", options.peer_python, options.directory / PEER, 1).close()
        return
    texts = texts_of(options.texts, options.words)
    tokenizer, threads = tokenizer_of(options.words), os.cpu_count() or 1
    ids = [[1, *tokenizer.encode(text), 2] for text in texts]
    assert {len(text) for text in ids} <= set(range(SHORTEST, LONGEST + 1))
    skipped = {} if options.peer_python else {"optimum": "no interpreter was named that has it"}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(engines(options.directory / BUNDLE, threads))
        address, _ = stack.enter_context(serving(options.directory / BUNDLE))
        peers = {"transformers": Peer("transformers", sys.executable, options.directory / PEER, threads)}
        if options.peer_python:
            peers["optimum"] = Peer("optimum", options.peer_python, options.directory / PEER, threads)
        for peer in peers.values():
            stack.callback(peer.close)
        few = ids[:4]
        wanted = np.array(peers["transformers"](few)["vectors"])
        told: dict[str, Any] = {
            "glossa, in-process": asyncio.run(in_process(pool, few)),
            "glossa, gRPC": asyncio.run(through_grpc(address, texts[:4])),
            **{name: peer(few)["vectors"] for name, peer in peers.items()},
        }
        for name, vectors in told.items():
            off = float(np.abs(np.array(vectors) - wanted).max())
            assert off < NEAR, f"{name} is {off} off"

        def timed(ask: Callable[[], Any]) -> Callable[[], float]:
            def job() -> float:
                time.sleep(REST_S)
                began_s = time.perf_counter()
                ask()
                return len(texts) / (time.perf_counter() - began_s)

            return job

        jobs = {
            "glossa, in-process": timed(lambda: asyncio.run(in_process(pool, ids))),
            "glossa, gRPC": timed(lambda: asyncio.run(through_grpc(address, texts))),
        }
        for name, peer in peers.items():
            jobs[name] = lambda peer=peer: len(ids) / peer(ids)["seconds"]  # type: ignore[misc]
        figures = interleaved(jobs, options.repeats)
    verdicts = [
        Verdict(f"{ours} against {name}, texts per second", figures[ours].median / figures[name].median, BARS[name])
        for name in peers
        for ours in ("glossa, in-process", "glossa, gRPC")
    ]
    differences = {name: float(np.abs(np.array(vectors) - wanted).max()) for name, vectors in told.items()}
    report(
        {**figures, "largest difference from transformers": differences, "tokens": sum(map(len, ids))},
        verdicts,
        as_json=options.json,
        skipped=skipped,
    )
