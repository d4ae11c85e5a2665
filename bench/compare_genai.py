"""Generation speed against onnxruntime-genai with the same weights in a Llama architecture.

PYTHON is an interpreter that has onnxruntime-genai (for its builder also torch, transformers and onnx). DIRECTORY keeps
the models (of `bench.peers_llama` and of the peer's own builder) between runs.

--case: `alone` is one request, `batch` 16 of equal lengths, `mixed` 16 whose prompts and answers have 1/4 to all of the
lengths. Whole answers are timed, prompts included; all engines run interleaved, `--repeats` times, and medians are
reported. A build is PRECISION-bBLOCK:THREADS. The peer answers a batch in one Generator, where all rows are as long as
the longest; tokens beyond the requested length are not counted. Only builds that keep the logits of all positions
(`…-full`) answer prompts of different lengths correctly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.case import Flag, case
from bench.engines import Engines
from bench.measure import machine
from bench.peers_llama import BUNDLE, PEER, Shape, prepare
from bench.pipe import Pipe
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from model.tokenizer import SPECIAL, Tokenizer
from service.machine.processors import processors
from service.request import Request
from service.runtime.model_sessions import BusyEngines
from service.runtime.runner import OnnxModel

ROWS = 16
REST_S = 0.1  # the threads of the last contestant look for work for a while
WORKER = Path(__file__).with_name("peer_worker.py")


@dataclass(frozen=True)
class Ask:
    """Token ids to continue and how many to add."""

    prompt: tuple[int, ...]
    tokens: int


class Contestant(Protocol):
    name: str

    def answer(self, asks: Sequence[Ask]) -> tuple[float, int]:
        """Seconds, and how many tokens were made of those that were asked for."""

    def close(self) -> None: ...


class Ours:
    """Engines in this process, one per processor; one that is alone takes all of them."""

    def __init__(self, scheme: str, path: Path, rows: int) -> None:
        self.name, count = f"glossa {scheme}", processors().usable
        model = OnnxModel.open(
            path,
            load_bundle(path),
            device="cpu",
            single_engine_threads=count if rows == 1 else 1,
            busy_engines=BusyEngines(),
        )
        runners = [model.runner(max_rows=rows) for _ in range(count)]
        self._engines = Engines(runners, Tokenizer.load(path / TOKENIZER), max_prefill_tokens=1 << 20)

    def answer(self, asks: Sequence[Ask]) -> tuple[float, int]:
        requests = [
            # Whole answers, as the peer's.
            Request(request_id=str(number), prompt=ask.prompt, max_tokens=ask.tokens, is_streamed=False)
            for number, ask in enumerate(asks)
        ]
        answers = self._engines.answer(requests)
        return self._engines.seconds, sum(answer.generated_tokens for answer in answers)

    def close(self) -> None:
        self._engines.close()


class OursServed:
    """`glossa serve` in a process of its own, with a client here."""

    def __init__(self, scheme: str, path: Path) -> None:
        from cli.local_server import serving  # the command imports what it needs

        self.name = f"glossa {scheme}, gRPC"
        self._tokenizer, self._stack = Tokenizer.load(path / TOKENIZER), ExitStack()
        self._address, _ = self._stack.enter_context(serving(path))

    def answer(self, asks: Sequence[Ask]) -> tuple[float, int]:
        return asyncio.run(self._answer(asks))

    async def _answer(self, asks: Sequence[Ask]) -> tuple[float, int]:
        from glossa.client import AsyncClient

        texts = [self._tokenizer.decode(ask.prompt) for ask in asks]
        async with AsyncClient(self._address) as client:
            began_s = time.perf_counter()
            calls = [client.generate(text, max_tokens=ask.tokens) for text, ask in zip(texts, asks, strict=True)]
            answers = await asyncio.gather(*calls)
        return time.perf_counter() - began_s, sum(answer.generated_tokens for answer in answers)

    def close(self) -> None:
        self._stack.close()


class Theirs(Pipe):
    """A peer of `bench.peer_worker`, in a process and with an interpreter of its own."""

    def __init__(self, peer: str, label: str, python: Path, directory: Path, threads: int) -> None:
        asked = {"peer": peer, "model": str(directory), "threads": threads}
        super().__init__(f"{label}, {threads} threads", [str(python), str(WORKER), json.dumps(asked)])
        self()

    def answer(self, asks: Sequence[Ask]) -> tuple[float, int]:
        prompts, longest = [list(ask.prompt) for ask in asks], max(ask.tokens for ask in asks)
        answer = self(prompts=prompts, max_tokens=longest)
        made = sum(min(ask.tokens, len(row)) for ask, row in zip(asks, answer["tokens"], strict=True))
        return answer["seconds"], made


def build_peer(python: Path, directory: Path, build: str) -> Path:
    """The model that the peer's builder makes of `directory`/llama, made once. build: PRECISION[-bBLOCK][-full]."""
    path = directory / f"genai-{build}"
    if not (path / "genai_config.json").exists():
        precision, *parts = build.split("-")
        extra = [] if "full" in parts else ["prune_lm_head=true"]
        extra += [f"block_size={part[1:]}" for part in parts if part != "full"]
        extra += ["accuracy_level=4"] if precision.startswith("int") else []
        command = [str(python), "-m", "onnxruntime_genai.models.builder", "-i", str(directory / PEER), "-o", str(path)]
        command += ["-p", precision, "-e", "cpu", "-c", str(directory / "cache"), "--extra_options", *extra]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def asks_of(case: str, prompt: int, tokens: int, words: int) -> list[Ask]:
    draw = random.Random(1)

    def one(share: float) -> Ask:
        ids = [draw.randrange(len(SPECIAL), words) for _ in range(max(1, round(share * prompt)) - 1)]
        return Ask((1, *ids), max(1, round(share * tokens)))

    return [one(draw.uniform(0.25, 1.0) if case == "mixed" else 1.0) for _ in range(1 if case == "alone" else ROWS)]


def measure(contestants: Sequence[Contestant], asks: Sequence[Ask], repeats: int) -> dict[str, float]:
    """Median tokens per second by name; all of them in turn."""
    expected = sum(ask.tokens for ask in asks)
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for turn in range(repeats + 1):
        for contestant in contestants:
            time.sleep(REST_S)
            seconds, made = contestant.answer(asks)
            if made != expected:
                raise SystemExit(f"{contestant.name}: {expected} tokens were asked for, {made} came")
            if turn:  # the first one touches memory and code
                rates[contestant.name].append(made / seconds)
    return {name: round(statistics.median(values), 1) for name, values in rates.items()}


@case(
    "directory",
    peer_python=Flag(Path, required=True),
    schemes="w4-block32,w8a8-dynamic",
    builds="int4-b32:1,int4-b32:2",
    case=Flag("alone", choices=("alone", "batch", "mixed")),
    prompt=64,
    tokens=64,
    repeats=5,
    grpc=Flag(False, help="ours also as a server"),
)
def compare_genai(options: argparse.Namespace) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    shape, schemes = Shape(), options.schemes.split(",")
    prepare(options.directory, shape, schemes)

    def contestants() -> Iterator[Contestant]:
        for scheme in schemes:
            path = options.directory / BUNDLE.format(scheme=scheme)
            yield Ours(scheme, path, 1 if options.case == "alone" else ROWS)
            if options.grpc:
                yield OursServed(scheme, path)
        for build, threads in (text.split(":") for text in options.builds.split(",")):
            path = build_peer(options.peer_python, options.directory, build)
            yield Theirs("genai", f"genai {build}", options.peer_python, path, int(threads))

    contest(contestants(), options, shape)


def contest(contestants: Iterable[Contestant], options: argparse.Namespace, shape: Shape) -> None:
    """Opens the contestants, measures them in turn, prints their rates and closes them."""
    asks = asks_of(options.case, options.prompt, options.tokens, shape.words)
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(contestant)) for contestant in contestants]
        print_rates(measure(opened, asks, options.repeats), options, len(asks))


def print_rates(rates: dict[str, float], options: argparse.Namespace, requests: int) -> None:
    """Prints rates, and the ratio of each to the fastest peer."""
    best = max(rate for name, rate in rates.items() if not name.startswith("glossa"))
    ratios = {name: round(rate / best, 2) for name, rate in rates.items()}
    figures = {"processor": machine()["model"], "case": options.case, "requests": requests, "prompt": options.prompt}
    figures |= {"tokens": options.tokens, "tokens_per_s": rates, "of_best_peer": ratios}
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{figures['processor']}, {options.case}: {requests} x {options.prompt} + {options.tokens} tokens")
    for name, rate in rates.items():
        print(f"{name:32} {rate:8.1f} tokens/s  {ratios[name]:.2f} x the best peer")
