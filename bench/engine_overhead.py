"""Overhead of Python: the share of a decode step outside ONNX Runtime's `run`, with all rows busy.


A 6+6-layer model with random weights answers `rows` concurrent requests: `engine` with sinks that drop their events,
`unary` and `streaming` over gRPC to a client in another process. A turn lasts from one run of the runner to the next.
Only turns with all rows and without new rows count, and only those of the second round: the first one allocates memory
that a busy server already has. At most 8 % of them, 20 % with streaming, may be outside ONNX Runtime.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from bench.case import Flag, case
from bench.engines import Engines
from bench.measure import machine
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from glossa.v1 import glossa_pb2, glossa_pb2_grpc
from model.tokenizer import Tokenizer
from service.edge.models.served_model import ServedModel
from service.engine.engine import Engine, EngineConfig
from service.engine.pool import EnginePool
from service.engine.scheduler import SchedulerConfig
from service.request import Request
from service.runtime.memory import HostMemory
from service.runtime.runner import OnnxModel, OnnxRunner
from service.server import Server
from service.settings.config import load_settings
from service.step import StepOutput, StepPlan

LIMITS = {"engine": 0.08, "unary": 0.08, "streaming": 0.20}
SOURCE_TOKENS = 20
ROUNDS = 2


RANDOM_BUNDLE = {
    "layers": 6,
    "width": 512,
    "words": 32000,
    "bundle": Flag(Path, help="a directory to keep the exported model in"),
}
"""The flags that `random_bundle` reads."""


@contextlib.contextmanager
def random_bundle(options: argparse.Namespace) -> Iterator[Path]:
    """A bundle of a translation model with random weights; its graphs are not compared with PyTorch."""
    import torch

    from bench.unverified_bundle import random_tokenizer, save_unverified
    from model.architecture_config import EncoderDecoderConfig
    from model.architectures import build

    with tempfile.TemporaryDirectory() as scratch:
        path = options.bundle or Path(scratch, "bundle")
        if not path.exists():
            torch.manual_seed(1)
            config = EncoderDecoderConfig(
                vocab_size=options.words,
                d_model=options.width,
                num_heads=options.width // 64,
                d_ff=4 * options.width,
                num_encoder_layers=options.layers,
                num_decoder_layers=options.layers,
            )
            save_unverified(path, build(config).eval(), random_tokenizer(options.words), source=(5, 6, 7, 2))
        yield path


class TimedSession:
    """A session that adds up how long it runs."""

    def __init__(self, session: Any) -> None:
        self._session, self.seconds = session, 0.0

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        began_s = time.perf_counter()
        self._session.run_with_iobinding(binding, options)
        self.seconds += time.perf_counter() - began_s


class TimedRunner(OnnxRunner):
    """Notes for each run when it began, its rows, whether rows joined or moved, and its seconds in ONNX Runtime.
    Forgets what was before the last turn in which all rows were new."""

    def __init__(self, model: OnnxModel, *, max_rows: int) -> None:
        self._timed = [TimedSession(session) for session in model.sessions.values()]
        sessions: dict[str, Any] = dict(zip(model.sessions, self._timed, strict=True))
        super().__init__(OnnxModel(model.manifest, model.choice, sessions), HostMemory(), max_rows=max_rows)
        self.eos_ids = ()  # random weights end sentences at random; here every row goes on to its length
        self.runs: list[tuple[float, int, bool, float]] = []

    def run(self, plan: StepPlan) -> StepOutput:
        began_s, before_s = time.perf_counter(), sum(session.seconds for session in self._timed)
        if len(plan.new_rows) == plan.rows:
            self.runs.clear()
        result = super().run(plan)
        inside_s = sum(session.seconds for session in self._timed) - before_s
        self.runs.append((began_s, plan.rows, bool(plan.new_rows or plan.copies), inside_s))
        return result

    def report(self, rows: int) -> dict[str, float]:
        """Milliseconds of a turn and inside ONNX Runtime, and the share outside it, over the turns that count."""
        pairs = list(zip(self.runs, self.runs[1:], strict=False))
        turns = [(after[0] - run[0], run[3]) for run, after in pairs if run[1] == rows == after[1] and not run[2]]
        whole_s, inside_s = (sum(column) for column in zip(*turns, strict=True))
        return {
            "turns": len(turns),
            "turn_ms": round(1e3 * whole_s / len(turns), 3),
            "onnxruntime_ms": round(1e3 * inside_s / len(turns), 3),
            "outside_ms_median": round(1e3 * statistics.median(whole - inside for whole, inside in turns), 3),
            "outside_share": round(1 - inside_s / whole_s, 4),
        }


def measure_engine(model: OnnxModel, tokenizer: Tokenizer, rows: int, tokens: int) -> dict[str, float]:
    runner, rng = TimedRunner(model, max_rows=rows), random.Random(1)
    vocabulary = model.manifest.limits.vocab_size
    with Engines([runner], tokenizer, max_prefill_tokens=1 << 20) as engines:
        for _ in range(ROUNDS):
            sources = [(*(rng.randrange(4, vocabulary) for _ in range(SOURCE_TOKENS)), 2) for _ in range(rows)]
            engines.answer(
                [
                    Request(request_id=str(number), source=source, prompt=(1,), max_tokens=tokens)
                    for number, source in enumerate(sources)
                ]
            )
    return runner.report(rows)


async def measure_served(
    path: Path, model: OnnxModel, tokenizer: Tokenizer, rows: int, tokens: int, *, is_streamed: bool
) -> dict[str, float]:
    """The same in the real server, with metrics and log, and a client in another process."""
    runner = TimedRunner(model, max_rows=rows)

    async def open_model(name: str, path: Path) -> ServedModel:
        config = EngineConfig(scheduler=SchedulerConfig(max_rows=rows, max_prefill_tokens=1 << 20))
        pool = EnginePool([Engine(runner, tokenizer, config, server.metrics.model(name))])
        pool.start()
        return ServedModel(
            name=name,
            manifest=model.manifest,
            choice=model.choice,
            bundle_sha256="",
            tokenizer=tokenizer,
            pool=pool,
        )

    settings = load_settings({"models": {"bench": path}, "port": 0, "http_port": 0, "drain_delay_s": 0.0})
    server = Server(settings, open_model=open_model)
    await server.start()
    command = (sys.executable, "-m", "bench", "engine-overhead", "--client", f"127.0.0.1:{server.port}")
    unary = () if is_streamed else ("--unary",)
    client = await asyncio.create_subprocess_exec(*command, "--rows", str(rows), "--tokens", str(tokens), *unary)
    status = await client.wait()
    await server.stop()
    if status:
        raise SystemExit(f"the client failed with status {status}")
    return runner.report(rows)


async def ask(address: str, rows: int, tokens: int, *, is_streamed: bool) -> None:
    """The client: `rows` concurrent requests; streams are read to the end."""
    rng = random.Random(2)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = glossa_pb2_grpc.TranslationServiceStub(channel)

        async def one() -> None:
            text = " ".join(f"w{rng.randrange(1000)}" for _ in range(SOURCE_TOKENS))
            options = glossa_pb2.DecodingOptions(max_tokens=tokens)
            if not is_streamed:
                await stub.Translate(glossa_pb2.TranslateRequest(text=text, options=options))
                return
            async for _ in stub.StreamTranslate(glossa_pb2.StreamTranslateRequest(text=text, options=options)):
                pass

        for _ in range(ROUNDS):
            await asyncio.gather(*(one() for _ in range(rows)))


def measure(path: Path, rows: int, tokens: int) -> dict[str, Any]:
    manifest = load_bundle(path)
    model = OnnxModel.open(path, manifest, device="cpu")
    tokenizer = Tokenizer.load(path / TOKENIZER)
    return {
        "processor": machine()["model"],
        "rows": rows,
        "tokens": tokens,
        "engine": measure_engine(model, tokenizer, rows, tokens),
        "unary": asyncio.run(measure_served(path, model, tokenizer, rows, tokens, is_streamed=False)),
        "streaming": asyncio.run(measure_served(path, model, tokenizer, rows, tokens, is_streamed=True)),
    }


@case(
    rows=32,
    tokens=150,
    **RANDOM_BUNDLE,
    client=Flag(help=argparse.SUPPRESS),
    unary=Flag(False, help=argparse.SUPPRESS),
)
def engine_overhead(options: argparse.Namespace) -> None:
    if options.client:
        asyncio.run(ask(options.client, options.rows, options.tokens, is_streamed=not options.unary))
        return
    with random_bundle(options) as path:
        figures = measure(path, options.rows, options.tokens)
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"{figures['processor']}, {figures['rows']} rows")
        for name, limit in LIMITS.items():
            part = figures[name]
            print(
                f"{name:10} turn {part['turn_ms']:.2f} ms, in ONNX Runtime {part['onnxruntime_ms']:.2f} ms, outside "
                f"{100 * part['outside_share']:.1f} % (at most {100 * limit:.0f} %), {part['turns']} turns"
            )
    sys.exit(any(figures[name]["outside_share"] > limit for name, limit in LIMITS.items()))
