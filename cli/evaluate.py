"""`glossa eval`: BLEU of a checkpoint, a bundle or a running server on a test set."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.connection import Connection, report_call_errors, with_connection
from cli.flags import MODEL, with_translation_flags
from cli.local_server import serving
from cli.terminal import AsJson, UsageError, report_errors, show


@with_translation_flags
@with_connection("connection", without="address")
def evaluate(
    subject: Annotated[str, typer.Argument(help="checkpoint, bundle, or HOST:PORT of a server", metavar="SUBJECT")],
    data: Annotated[Path | None, typer.Option(help="TSV of sources and references; may be .gz")] = None,
    source: Annotated[Path | None, typer.Option(help="sources, one a line (with --reference)")] = None,
    reference: Annotated[Path | None, typer.Option(help="references, one a line (with --source)")] = None,
    beam_size: Annotated[int, typer.Option("--beam", "--beam-size", help="beam size; 1: greedy search")] = 1,
    as_json: AsJson = False,
    *,
    connection: Connection,
    options: dict[str, Any],
) -> None:
    """Translate a test set and score it: BLEU (sacreBLEU, 13a, cased) with its signature."""
    with report_errors():
        if (data is None) == (source is None) or (source is None) != (reference is None):
            raise UsageError("give --data FILE.tsv, or both --source and --reference")
    from model.training.data import DataError, read_parallel, read_tsv
    from model.training.evaluate import bleu

    with report_errors(DataError):
        if source is not None and reference is not None:
            examples = read_parallel(source, reference)
        elif data is not None:
            examples = read_tsv([data])
    texts = [text for text, _ in examples.pairs]
    started = time.monotonic()
    hypotheses = translations(subject, texts, {"beam_size": beam_size, **options}, connection)
    seconds = time.monotonic() - started
    score = bleu(hypotheses, [text for _, text in examples.pairs])
    figures = {"BLEU": round(score.score, 2), "signature": score.signature, "sentences": len(texts)}
    show({**figures, "seconds": round(seconds, 1)}, as_json)


def translations(subject: str, texts: list[str], options: dict[str, Any], connection: Connection) -> list[str]:
    """Translate texts by a checkpoint in PyTorch, by a bundle in a temporary server, or by a running server."""
    from export.manifest import MANIFEST
    from model.checkpoint import CheckpointError, load_checkpoint
    from model.config import LanguagePair
    from model.training.evaluate import TooLongError
    from model.training.evaluate import translate as translate_in_torch

    with contextlib.ExitStack() as stack:
        is_bundle = (Path(subject) / MANIFEST).is_file()
        if not is_bundle and (Path(subject).exists() or ":" not in subject):
            stack.enter_context(report_errors(CheckpointError, TooLongError, ValueError))
            checkpoint = load_checkpoint(Path(subject))
            if not (checkpoint.config.has_encoder and checkpoint.config.has_decoder):
                raise UsageError(
                    f"{subject}: only models that translate have a BLEU; others report their scores after training"
                )
            if options.keys() - MODEL.keys() != {"beam_size"} or options["beam_size"] != 1:
                raise UsageError(f"{subject}: a checkpoint is decoded greedily; export it to use --beam and options")
            languages = LanguagePair(options.get("source_language", ""), options.get("target_language", ""))
            return translate_in_torch(checkpoint.model, checkpoint.tokenizer, texts, languages=languages)
        address = stack.enter_context(serving(Path(subject)))[0] if is_bundle else subject
        reached = dataclasses.replace(connection, address=address)
        stack.enter_context(report_call_errors(reached))
        client = stack.enter_context(reached.client())
        return [answer.text for answer in client.translate_batch(texts, **options)]
