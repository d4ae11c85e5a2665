"""`glossa demo`: train on the embedded corpus, export, serve and translate."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import Connection, report_call_errors
from cli.export import export
from cli.local_server import fetch, serving
from cli.terminal import report_errors
from cli.training.train import run_training

SENTENCES = 500
LEAST_EXACT = 0.97  # share of unseen sentences that the demo model must translate exactly


def demo(
    out: Annotated[Path, typer.Option(help="directory of the checkpoint and the bundle")] = Path("runs/demo"),
) -> None:
    """Train on the embedded corpus, export, serve, and translate sentences with unseen combinations."""
    typer.echo(
        "1. train: English to German scenes, a few minutes on two cores; Ctrl-C stops, the same command continues"
    )
    typer.echo("   loading PyTorch")
    started = time.monotonic()
    checkpoint, bundle = out / "checkpoint", out / "bundle"
    train_demo(checkpoint, bundle)
    typer.echo(f"\n2. export: trained in {time.monotonic() - started:.0f} s; writing and verifying ONNX graphs")
    export(checkpoint, bundle, replace=True)
    from model.corpus.corpus import pairs

    unseen = pairs(seed=1, count=SENTENCES, split="test")
    typer.echo("\n3. serve and translate")
    with report_errors(), serving(bundle) as (address, ops):
        before = counters(fetch(f"{ops}/metrics"))
        exact = translate_unseen(address, unseen)
        after = counters(fetch(f"{ops}/metrics"))
    typer.echo("\nmetrics that changed")
    for name, value in after.items():
        if value != before.get(name, 0.0):
            typer.echo(f"  {name} {value:g}")
    typer.echo(f"\ndone in {time.monotonic() - started:.0f} s; to serve it yourself: glossa serve demo={bundle}")
    if exact < LEAST_EXACT:
        typer.echo(f"error: {exact:.1%} exactly right, must be at least {LEAST_EXACT:.0%}", err=True)
        raise typer.Exit(1)


def train_demo(checkpoint: Path, bundle: Path) -> None:
    """Train the preset `demo`, or continue a training that was interrupted. A finished one is repeated."""
    from model.checkpoints.atomic_write import DIGESTS
    from model.presets import PRESETS
    from model.training.data.embedded import embedded_examples

    if (checkpoint / DIGESTS).exists():
        shutil.rmtree(checkpoint)
        shutil.rmtree(bundle, ignore_errors=True)
    preset = PRESETS["demo"]
    advice, examples = "to continue, repeat the command", embedded_examples(preset.embedded)
    run_training(preset.model, preset.train, advice, data=examples, out=checkpoint, resume=True)


def translate_unseen(address: str, unseen: Sequence[tuple[str, str]]) -> float:
    """Translate one sentence streamed and all of them in a batch; returns the share that is exactly right."""
    connection = Connection(address=address)
    with report_call_errors(connection), connection.client() as client:
        english, german = max(unseen[:50], key=lambda pair: len(pair[0]))
        typer.echo(f"serving on {address}\n  {english}\n  ", nl=False)
        for piece in client.stream_translate(english):
            typer.echo(piece.text, nl=False)
            if (answer := piece.answer) is not None:
                typer.echo(
                    f"\n  expected: {german}\n  first token {1e3 * answer.first_token_s:.1f} ms, "
                    f"{answer.generated_tokens} tokens in {1e3 * answer.total_s:.1f} ms"
                )
        sent_s = time.monotonic()
        answers = [answer.text for answer in client.translate_batch(source for source, _ in unseen)]
        seconds = time.monotonic() - sent_s
    wrong = [(pair, text) for pair, text in zip(unseen, answers, strict=True) if text != pair[1]]
    exact = 1 - len(wrong) / len(unseen)
    typer.echo(f"\n{len(unseen)} sentences with unseen combinations in {seconds:.1f} s: {exact:.1%} exactly right")
    for (source, target), text in wrong[:3]:
        typer.echo(f"  wrong: {source}\n    expected {target}\n    got      {text}")
    return exact


def counters(exposition: str) -> dict[str, float]:
    """Every counter of a Prometheus exposition, and the counts of its histograms, summed over labels."""
    totals: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith("glossa_") and name.endswith(("_total", "_count")):
            totals[name] = totals.get(name, 0.0) + float(line.rpartition(" ")[2])
    return totals
