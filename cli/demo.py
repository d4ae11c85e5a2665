"""`glossa demo`: fine-tune a model of everyday sentences on another kind of text, export, serve and translate both."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Connection, report_call_errors
from cli.export import export
from cli.local_server import fetch, serving
from cli.terminal import UsageError, report_errors
from cli.training.train import run_training

if TYPE_CHECKING:
    from glossa.client import Client

EVERYDAY = Path(__file__).resolve().parent.parent / "examples/everyday"  # its README.md tells what is in it
SCENES = 10_000  # pairs of the embedded grammar to train on; everyday pairs beside them keep what the model knows
UNSEEN_SCENES = 500
LEAST_EXACT = 0.25  # share of unseen scenes that the demo model must translate exactly
LEAST_BLEU = 25.0  # on everyday sentences that neither the base nor the demo was trained on
TYPED = (
    "Hello, how are you?",
    "I would like a cup of coffee, please.",
    "Where is the nearest train station?",
    "My brother doesn't like to get up early.",
    "What did you do yesterday evening?",
)


def demo(
    out: Annotated[Path, typer.Option(help="directory of the checkpoint and the bundle")] = Path("runs/demo"),
) -> None:
    """Fine-tune the English-German model of examples/everyday on the embedded grammar of scenes, export, serve, and
    translate what neither was trained on."""
    with report_errors():
        if not EVERYDAY.is_dir():
            raise UsageError(f"{EVERYDAY}: no such directory; run the demo from a clone of the repository")
    typer.echo(
        "1. fine-tune: everyday English to German learns the scenes of a grammar, a few minutes on two cores; Ctrl-C "
        "stops, the same command continues\n   loading PyTorch"
    )
    started = time.monotonic()
    checkpoint, bundle = out / "checkpoint", out / "bundle"
    train_demo(checkpoint, bundle)
    typer.echo(f"\n2. export: trained in {time.monotonic() - started:.0f} s; writing and verifying ONNX graphs")
    export(checkpoint, bundle, replace=True)
    typer.echo("\n3. serve and translate")
    with report_errors(), serving(bundle) as (address, ops):
        before = counters(fetch(f"{ops}/metrics"))
        bleu, exact = translate(address)
        after = counters(fetch(f"{ops}/metrics"))
    typer.echo("\nmetrics that changed")
    for name, value in after.items():
        if value != before.get(name, 0.0):
            typer.echo(f"  {name} {value:g}")
    typer.echo(f"\ndone in {time.monotonic() - started:.0f} s; to serve it yourself: glossa serve demo={bundle}")
    if bleu < LEAST_BLEU or exact < LEAST_EXACT:
        wanted = f"BLEU must be at least {LEAST_BLEU:g} and {LEAST_EXACT:.0%} exactly right"
        typer.echo(f"error: BLEU {bleu:.1f} and {exact:.1%} exactly right; {wanted}", err=True)
        raise typer.Exit(1)


def train_demo(checkpoint: Path, bundle: Path) -> None:
    """Fine-tune the everyday model, or continue a training that was interrupted. A finished one is repeated."""
    from model.checkpoints.atomic_write import DIGESTS
    from model.presets import continuing
    from model.training.data.embedded import embedded_examples
    from model.training.data.examples import Examples
    from model.training.data.text_files import read_tsv
    from model.training.start import Start, read_base

    if (checkpoint / DIGESTS).exists():
        shutil.rmtree(checkpoint)
        shutil.rmtree(bundle, ignore_errors=True)
    base = read_base(EVERYDAY / "checkpoint")
    preset = continuing(base.config, str(EVERYDAY / "fine_tuning.yaml"))
    scenes, everyday = embedded_examples("pairs", SCENES), read_tsv([EVERYDAY / "train.tsv.gz"])
    data = Examples([*scenes.pairs, *everyday.pairs], f"{scenes.name} and {everyday.name}")
    advice = "to continue, repeat the command"
    run_training(preset.model, preset.train, advice, data=data, out=checkpoint, start=Start(base=base), resume=True)


def translate(address: str) -> tuple[float, float]:
    """Translate typed sentences as streams, and unseen ones in batches; returns BLEU on everyday ones and the share of
    scenes that is exactly right."""
    from model.corpus.corpus import pairs
    from model.training.data.text_files import read_tsv
    from model.training.evaluate import bleu

    everyday, scenes = read_tsv([EVERYDAY / "test.tsv"]).pairs, pairs(seed=1, count=UNSEEN_SCENES, split="test")
    connection = Connection(address=address)
    with report_call_errors(connection), connection.client() as client:
        typer.echo(f"serving on {address}")
        for english in TYPED:
            _stream(client, english)
        answers, seconds = _batch(client, everyday)
        score = bleu(answers, [german for _, german in everyday]).score
        typer.echo(f"\n{len(everyday):,} unseen everyday sentences in {seconds:.1f} s: BLEU {score:.1f}")
        answers, seconds = _batch(client, scenes)
    wrong = [(pair, text) for pair, text in zip(scenes, answers, strict=True) if text != pair[1]]
    exact = 1 - len(wrong) / len(scenes)
    typer.echo(f"{len(scenes)} scenes with unseen combinations in {seconds:.1f} s: {exact:.1%} exactly right")
    for (source, target), text in wrong[:2]:
        typer.echo(f"  wrong: {source}\n    expected {target}\n    got      {text}")
    return score, exact


def _stream(client: Client, english: str) -> None:
    typer.echo(f"  {english}\n    ", nl=False)
    for piece in client.stream_translate(english):
        typer.echo(piece.text, nl=False)
        if (answer := piece.answer) is not None:
            figures = f"{answer.generated_tokens} tokens in {1e3 * answer.total_s:.1f} ms"
            typer.echo(f"  (first token {1e3 * answer.first_token_s:.1f} ms, {figures})")


def _batch(client: Client, sentences: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """The answers for the sources, and the seconds that they took."""
    sent_s = time.monotonic()
    answers = [answer.text for answer in client.translate_batch(source for source, _ in sentences)]
    return answers, time.monotonic() - sent_s


def counters(exposition: str) -> dict[str, float]:
    """Every counter of a Prometheus exposition, and the counts of its histograms, summed over labels."""
    totals: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith("glossa_") and name.endswith(("_total", "_count")):
            totals[name] = totals.get(name, 0.0) + float(line.rpartition(" ")[2])
    return totals
