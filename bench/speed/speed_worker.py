"""One engine in a separate process that executes orders and reports their time.

The process is separate because settings that decide an engine's speed are read once, at startup: `CT2_FORCE_CPU_ISA`,
`GLIBC_TUNABLES`, the number of OpenMP threads. It reads orders from standard input, one JSON object per line, and
answers each with one line; `Worker` is the other end of the pipe. An order has the sentences (a `Workload` file), their
number, the beam size, whether they run as a single stream, and settings of the engine:

    glossa        rows, engines, single_engine_threads, first, every (of the sentences); its graphs, no gRPC
    client, lean  a server's address is its model; gRPC
    ctranslate2   kind, inter_threads, intra_threads, batch
    transformers  dtype, threads, batch

Texts are token ids for all engines, so tokenizers are not measured, except over gRPC.

usage: python -m bench.speed.speed_worker ENGINE MODEL     (what Worker starts)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.speed.pipe import Pipe
from bench.speed.speed_models import Workload

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
OPENMP_SPINS_S = 0.25  # threads of OpenMP wait so long for more work, busily: nothing may be measured meanwhile

Order = Mapping[str, Any]
Lengths = list[int]  # tokens of each answer


class WorkerFailed(Exception):
    """An order could not be done."""


class Worker(Pipe):
    """The other end: starts the process, hands it orders, ends it."""

    def __init__(
        self, engine: str, model: Path | str, work: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """work: the Workload that orders take their sentences from."""
        self._work = str(work)
        inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
        threads = {} if engine == "transformers" else {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bench.speed.speed_worker", engine, str(model)]
        super().__init__(engine, command, {**inherited, **threads, **(environment or {})})

    def __call__(self, **order: Any) -> dict[str, Any]:
        """Does one order: {"seconds", "tokens", "sentences"}. Raises PipeFailed."""
        return super().__call__(**{"work": self._work, **order})

    def rate(self, **order: Any) -> float:
        """Sentences a second."""
        answer = self(**order)
        return float(answer["sentences"] / answer["seconds"])


class Workers:
    """Several workers of the engine `glossa` that share the sentences of an order, as engine processes do."""

    def __init__(self, workers: Sequence[Worker], engines: int = 1) -> None:
        """engines: of each worker."""
        self._workers, self._engines = workers, engines
        self._threads = ThreadPoolExecutor(len(workers))

    def __call__(self, **order: Any) -> dict[str, Any]:
        """As `Worker`; seconds until the last one is done."""
        shares = [{**order, "first": place, "every": len(self._workers)} for place in range(len(self._workers))]
        answers = list(
            self._threads.map(lambda worker, share: worker(engines=self._engines, **share), self._workers, shares)
        )
        total = {name: sum(answer[name] for answer in answers) for name in ("tokens", "sentences")}
        return {"seconds": max(answer["seconds"] for answer in answers), **total}

    def rate(self, **order: Any) -> float:
        """Sentences a second."""
        answer = self(**order)
        return float(answer["sentences"] / answer["seconds"])


# ---- the worker's side: each engine is a function from a model to one that does an order and returns answers' lengths


def glossa(path: str) -> Callable[[Order, Workload], Lengths]:
    from bench.speed.engines import Engines
    from export.bundle.directory import load_bundle
    from export.bundle.manifest import TOKENIZER
    from model.tokenizer import Tokenizer
    from service.machine.processors import processors
    from service.options import DecodingOptions
    from service.request import Request
    from service.runtime.onnx_model import OnnxModel

    bundle = Path(path)
    manifest, tokenizer = load_bundle(bundle), Tokenizer.load(bundle / TOKENIZER)

    @functools.cache
    def model(single_engine_threads: int) -> OnnxModel:
        return OnnxModel.open(bundle, manifest, device="cpu", single_engine_threads=single_engine_threads)

    @functools.cache
    def engines_of(rows: int, engines: int, single_engine_threads: int) -> Engines:
        return Engines(
            [model(single_engine_threads).runner(max_rows=rows) for _ in range(engines)],
            tokenizer,
            kv_cache_bytes=1 << 33,
            max_prefill_tokens=1 << 11,
            max_idle_prefill_tokens=1 << 14,
        )

    def do(order: Order, work: Workload) -> Lengths:
        engines = engines_of(
            order.get("rows", 64),
            order.get("engines", 0) or processors().usable,
            order.get("single_engine_threads", 1),
        )
        options = DecodingOptions(beam_size=order["beam"])
        mine = slice(order.get("first", 0), order["count"], order.get("every", 1))
        requests = [
            Request(
                request_id=str(place),
                source=source,
                prompt=(1,),
                max_tokens=work.max_tokens,
                options=options,
                is_streamed=False,
            )
            for place, source in enumerate(work.sources[mine])
        ]
        return [answer.generated_tokens for answer in engines.answer(requests, singly=order["alone"])]

    return do


def ctranslate2(path: str) -> Callable[[Order, Workload], Lengths]:
    library = importlib.import_module("ctranslate2")
    translators: dict[tuple[str, int, int], Any] = {}

    def do(order: Order, work: Workload) -> Lengths:
        key = order["kind"], order.get("inter_threads", 1), order.get("intra_threads", 1)
        if key not in translators:
            translators[key] = library.Translator(
                path, device="cpu", compute_type=key[0], inter_threads=key[1], intra_threads=key[2]
            )
        texts = [[str(token) for token in source] for source in work.sources[: order["count"]]]

        def translate(texts: list[list[str]]) -> Lengths:
            answers = translators[key].translate_batch(
                texts,
                beam_size=order["beam"],
                max_decoding_length=work.max_tokens,
                max_batch_size=order.get("batch", 1),
                max_input_length=0,
                return_end_token=True,  # our lengths count it too
            )
            return [len(answer.hypotheses[0]) for answer in answers]

        return list(itertools.chain(*[translate([text]) for text in texts])) if order["alone"] else translate(texts)

    return do


def transformers(path: str) -> Callable[[Order, Workload], Lengths]:
    import torch

    from bench.speed.peers import transformers_model
    from model.checkpoints.checkpoint import load_checkpoint

    with contextlib.redirect_stdout(sys.stderr):
        plain = transformers_model(load_checkpoint(Path(path)).model)
    models = {"float32": plain}

    def batches(work: Workload, order: Order) -> Iterator[tuple[Any, Any]]:
        """Sorted by length, as the other engines sort by themselves."""
        size = 1 if order["alone"] else order.get("batch", 64)
        sources = sorted(work.sources[: order["count"]], key=len)
        for start in range(0, len(sources), size):
            group = [torch.tensor(source) for source in sources[start : start + size]]
            ids = torch.nn.utils.rnn.pad_sequence(group, batch_first=True)
            lengths = torch.tensor([len(source) for source in group])
            yield ids, (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()

    def do(order: Order, work: Workload) -> Lengths:
        dtype = order.get("dtype", "float32")
        if dtype not in models:
            with contextlib.redirect_stdout(sys.stderr):
                models[dtype] = transformers_model(load_checkpoint(Path(path)).model).to(getattr(torch, dtype))
        torch.set_num_threads(order.get("threads", 1))
        found: Lengths = []
        with torch.inference_mode():
            for ids, mask in batches(work, order):
                answers = models[dtype].generate(
                    ids, attention_mask=mask, num_beams=order["beam"], do_sample=False, max_new_tokens=work.max_tokens
                )
                end = models[dtype].generation_config.eos_token_id
                for row in answers[:, 1:].tolist():
                    found.append(row.index(end) + 1 if end in row else len(row))
        return found

    return do


def client(address: str) -> Callable[[Order, Workload], Lengths]:
    """A server's client. The workload has texts instead of ids."""
    import grpc

    from glossa.v1 import glossa_pb2, glossa_pb2_grpc

    loop = asyncio.new_event_loop()

    async def connect() -> Any:
        return glossa_pb2_grpc.TranslationServiceStub(grpc.aio.insecure_channel(address))

    stub = loop.run_until_complete(connect())

    async def length(request: Any) -> int:
        return int((await stub.Translate(request)).usage.generated_tokens)

    async def lengths(requests: list[Any], *, alone: bool) -> Lengths:
        if alone:
            return [await length(request) for request in requests]
        return list(await asyncio.gather(*map(length, requests)))

    def do(order: Order, work: Workload) -> Lengths:
        requests = [glossa_pb2.TranslateRequest.FromString(message) for message in _messages(order, work)]
        return loop.run_until_complete(lengths(requests, alone=order["alone"]))

    return do


def lean(address: str) -> Callable[[Order, Workload], Lengths]:
    """The same with `lean_client`, which takes hardly any processor time."""
    from bench.load.lean_client import LeanConnection
    from glossa.v1 import glossa_pb2

    connection = LeanConnection(address)

    def do(order: Order, work: Workload) -> Lengths:
        answers = connection.call("/glossa.v1.TranslationService/Translate", _messages(order, work))
        return [glossa_pb2.TranslateResponse.FromString(answer).usage.generated_tokens for answer in answers]

    return do


def _messages(order: Order, work: Workload) -> list[bytes]:
    from glossa.v1 import glossa_pb2

    decoding = glossa_pb2.DecodingOptions(max_tokens=work.max_tokens, beam_size=order["beam"])
    texts = json.loads(Path(order["texts"]).read_text())[: order["count"]]
    return [glossa_pb2.TranslateRequest(text=text, options=decoding).SerializeToString() for text in texts]


ENGINES = {engine.__name__: engine for engine in (glossa, ctranslate2, transformers, client, lean)}


def serve(engine: str, model: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print
    do = ENGINES[engine](model)
    workloads: dict[str, Workload] = {}
    for line in sys.stdin:
        order = {"beam": 1, "alone": False, **json.loads(line)}
        file = order["work"]
        if file not in workloads:
            workloads[file] = Workload.load(Path(file))
        work = workloads[file]
        try:
            began_s = time.perf_counter()
            lengths = do(order, work)
            result: dict[str, Any] = {"seconds": time.perf_counter() - began_s}
            if work.is_exact and set(lengths) != {work.max_tokens}:
                raise WorkerFailed(f"every answer must have {work.max_tokens} tokens, got {sorted(set(lengths))}")
            result |= {"sentences": len(lengths), "tokens": sum(lengths)}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=answers, flush=True)
        if max(order.get(name, 1) for name in ("intra_threads", "single_engine_threads", "threads")) > 1:
            time.sleep(OPENMP_SPINS_S)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
