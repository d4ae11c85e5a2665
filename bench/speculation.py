"""Tokens/s with and without `--draft-tokens`, on repetitive and other texts.


One engine in this process answers whole requests, prompts included; with and without drafts interleaved, medians of
`--repeats` and of the ratios of neighbours. Without --checkpoint the weights are random, in the shape of Llama; such a
model soon repeats itself for any prompt, so it only shows the cost of blocks against steps: the acceptance rate depends
on real texts.

Prompts that repeat: one line several times over. Others: different lines of --text, or random tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.engines import Engines
from bench.measure import machine
from bench.peers_llama import Shape, random_llama, save_bundle
from bench.unverified_bundle import random_tokenizer
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from export.options import ExportOptions, QuantizationOptions
from export.passes.quantization_scheme import SCHEMES
from export.select_scheme import Development
from export.to_onnx import export_bundle
from model.tokenizer import Tokenizer
from service.engine.engine_metrics import NullMetrics
from service.request import Request
from service.runtime.runner import OnnxModel


class Counting(NullMetrics):
    """Of all drafts of an engine."""

    def __init__(self) -> None:
        self.drafted = self.accepted = 0

    def speculated(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted


class Contestant(Engines):
    """An engine with or without drafts."""

    def __init__(self, model: OnnxModel, tokenizer: Tokenizer, draft: int, rows: int) -> None:
        self.counts = Counting()
        super().__init__([model.runner(max_rows=rows)], tokenizer, metrics=self.counts, draft_tokens=draft)

    def rate(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> tuple[float, list[tuple[int, ...]]]:
        """Tokens per second, and the answers."""
        requests = [Request(request_id=str(n), prompt=prompt, max_tokens=tokens) for n, prompt in enumerate(prompts)]
        ends = self.answer(requests)
        return sum(end.generated_tokens for end in ends) / self.seconds, [end.hypotheses[0].tokens for end in ends]


def make_bundle(arguments: argparse.Namespace, texts: Sequence[str], path: Path) -> None:
    """Of the checkpoint, or of random weights in the shape of Llama."""
    scheme = SCHEMES[arguments.scheme]
    if arguments.checkpoint is None:
        shape = Shape(layers=arguments.layers, width=arguments.width, words=arguments.words)
        model = random_llama(shape)
        save_bundle(model, random_tokenizer(shape.words), path, scheme.name)
        return
    quantization = QuantizationOptions(scheme=scheme.name, development=Development(texts[:32]), max_loss=100.0)
    options = ExportOptions(precisions=(scheme.precision,), quantization=quantization)
    export_bundle(arguments.checkpoint, path, options if scheme.is_quantized else ExportOptions())


def prompts_of(kind: str, count: int, tokenizer: Tokenizer, texts: Sequence[str], words: int) -> list[tuple[int, ...]]:
    """Prompts of about 60 tokens: a text that repeats itself, or one that does not."""
    rng = random.Random(1)
    made = []
    for number in range(count):
        if texts:
            text = " ".join(texts[number : number + 8]) if kind == "ordinary" else (texts[number] + "\n") * 8
            ids = tokenizer.encode(text)[:60]
        else:
            part = [rng.randrange(4, words) for _ in range(60 if kind == "ordinary" else 12)]
            ids = (part * 5)[:60]
        made.append((1, *ids))
    return made


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A line of figures for each kind of prompt and number of requests."""
    texts = [line for line in arguments.text.read_text().splitlines() if len(line) > 30] if arguments.text else []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "bundle"
        make_bundle(arguments, texts, path)
        manifest = load_bundle(path)
        opened = OnnxModel.open(path, manifest, device="cpu", single_engine_threads=arguments.threads)
        tokenizer = Tokenizer.load(path / TOKENIZER)
        return [
            _compared(opened, tokenizer, kind, count, texts, arguments)
            for kind in ("repeating", "ordinary")
            for count in arguments.requests
        ]


def _compared(
    model: OnnxModel, tokenizer: Tokenizer, kind: str, count: int, texts: Sequence[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    prompts = prompts_of(kind, count, tokenizer, texts, model.manifest.limits.vocab_size)
    room = model.manifest.limits.max_target_len - max(map(len, prompts)) + 1
    tokens = min(arguments.tokens, room)
    contestants = [Contestant(model, tokenizer, draft, count) for draft in (0, arguments.draft)]
    rates: list[list[float]] = [[], []]
    answers: list[Any] = [None, None]
    try:
        for repeat in range(arguments.repeats + 1):  # the first one warms up
            for place, contestant in enumerate(contestants):
                rate, answers[place] = contestant.rate(prompts, tokens)
                if repeat:
                    rates[place].append(rate)
    finally:
        for contestant in contestants:
            contestant.close()
    metrics = contestants[1].counts
    plain, drafting = (statistics.median(some) for some in rates)
    return {
        "prompts": kind,
        "requests": count,
        "plain": round(plain, 1),
        "drafting": round(drafting, 1),
        "ratio": round(statistics.median(b / a for a, b in zip(*rates, strict=True)), 3),
        "drafted": metrics.drafted,
        "accepted": metrics.accepted,
        "equal_answers": sum(one == other for one, other in zip(*answers, strict=True)),
    }


@case(
    checkpoint=Path,
    text=Flag(Path, help="lines to make prompts of"),
    layers=12,
    width=768,
    words=32000,
    scheme=Flag("w8a8-dynamic", choices=list(SCHEMES)),
    draft=8,
    requests=[1, 8],
    tokens=128,
    repeats=5,
    threads=1,
)
def speculation(arguments: argparse.Namespace) -> None:
    lines = measure(arguments)
    if arguments.json:
        print(json.dumps({"processor": machine()["model"], "lines": lines}))
        return
    print(machine()["model"])
    for line in lines:
        print("  ".join(f"{name} {value}" for name, value in line.items()))
