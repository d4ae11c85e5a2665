"""`glossa eval`: BLEU and confidence, or the F1 of labelled spans, of a checkpoint, a bundle or a running server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import Connection, reached, report_call_errors, with_connection
from cli.flags import MODEL, flag_name
from cli.options_file import FLAG, beam, with_options_file
from cli.progress import progress
from cli.terminal import AsJson, UsageError, report_errors, show
from cli.training.rows import PAIRS_FILE, Columns, SkipBadRows, row_rules

if TYPE_CHECKING:
    from cli.training.confidence_report import Judged
    from glossa.client.types import Confidence
    from model.training.data.text_files import RowRules

SOURCES, PAIRS = "sources in training data", "pairs in training data"
REASON = "only checkpoints record their training rows, and not those that were imported or are older"


@with_options_file({"beam_size": beam("beam size; default: 1, greedy search"), **MODEL})
@with_connection("connection", without="address")
def evaluate(
    subject: Annotated[str, typer.Argument(help="checkpoint, bundle, or HOST:PORT of a server", metavar="SUBJECT")],
    data: Annotated[Path | None, typer.Option(help=PAIRS_FILE)] = None,
    columns: Columns = None,
    skip_bad_rows: SkipBadRows = False,
    source: Annotated[Path | None, typer.Option(help="sources, one a line (with --reference)")] = None,
    reference: Annotated[Path | None, typer.Option(help="references, one a line (with --source)")] = None,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="also evaluate the confidence of the answers and their words")
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(help="picture to write: chrF over the share of answers kept (with --confidence)")
    ] = None,
    spans: Annotated[
        bool, typer.Option("--spans", help="the data are texts and labelled spans, as those that a tagger trains on")
    ] = False,
    as_json: AsJson = False,
    *,
    connection: Connection,
    options: dict[str, Any],
) -> None:
    """Translate a test set and score it: BLEU (sacreBLEU, 13a, cased) with its signature. For a checkpoint, also
    count the rows of the test set that were in its training data.

    With --confidence: expected calibration errors, the share of errors in the least certain tenth, and the quality of
    the answers that remain without the least certain ones. With --spans: label a test set instead; precision, recall
    and F1 of exactly found spans.
    """
    with report_errors():
        rules = row_rules(columns, skips=skip_bad_rows, is_given=data is not None)
        if spans:
            others = {"--confidence": confidence, "--curve": curve, "--source": source, "--reference": reference}
            texts = _spans_data(data, others, options)
            return show(_span_figures(subject, texts, rules, options, connection, as_json=as_json), as_json)
        if curve is not None:
            _check_curve(curve, confidence=confidence)
        if (data is None) == (source is None) or (source is None) != (reference is None):
            raise UsageError("give --data FILE, or both --source and --reference")
    wanted = {**({"confidence": True} if confidence else {}), **options}
    files = [file for file in (data, source, reference) if file is not None]
    figures, answers = _translation_figures(subject, files, rules, wanted, connection, as_json=as_json)
    show(figures, as_json)
    if curve is not None:
        with report_errors():
            _draw(answers, curve)


def _spans_data(data: Path | None, others: dict[str, Any], options: dict[str, Any]) -> Path:
    """The data of labelled spans. others: values of flags of translation. options: of models and decoding. Raises
    UsageError without data, and for what `--spans` would ignore."""
    if data is None:
        raise UsageError("--spans: needs --data FILE")
    unused = [flag for flag, value in others.items() if value]
    flags = {"beam_size": "--beam", "model": ""} | {name: flag_name(name) for name in MODEL if name != "model"}
    unused += [flags.get(name, FLAG) for name in options]
    if unused := list(dict.fromkeys(filter(None, unused))):
        raise UsageError(f"--spans: labels a text instead of translating it; leave out {', '.join(unused)}")
    return data


def _check_curve(curve: Path, *, confidence: bool) -> None:
    """Raises UsageError if the picture could not be drawn. Called before anything is translated."""
    from cli.training.confidence_report import check_curve

    if not confidence:
        raise UsageError("--curve needs --confidence")
    check_curve(curve)


def _draw(answers: Sequence[Judged], curve: Path) -> None:
    from cli.training.confidence_report import draw
    from model.training.evaluate import chrf

    draw(answers, chrf, "chrF", curve)


def _translation_figures(
    subject: str,
    files: Sequence[Path],
    rules: RowRules,
    options: dict[str, Any],
    connection: Connection,
    *,
    as_json: bool,
) -> tuple[dict[str, Any], list[Judged]]:
    """The scores of translations, and the answers with their confidence if the options request it. files: a TSV, or
    sources and references."""
    from model.checkpoints.checkpoint import CheckpointError
    from model.training.data.examples import DataError
    from model.training.data.text_files import read_parallel, read_tsv
    from model.training.evaluate import bleu

    with report_errors(DataError):
        examples = read_parallel(*files, rules=rules) if len(files) == 2 else read_tsv(files, rules=rules)
    texts, references = [text for text, _ in examples.pairs], [text for _, text in examples.pairs]
    started = time.monotonic()
    answers = translations(subject, texts, options, connection)
    seconds = time.monotonic() - started
    score = bleu([text for text, _ in answers], references)
    figures: dict[str, Any] = {"BLEU": round(score.score, 2), "signature": score.signature, "sentences": len(texts)}
    compared: list[Judged] = []
    if options.get("confidence"):
        with report_errors():
            found, compared = confidence_figures(answers, references)
        figures |= found
    with report_errors(CheckpointError):
        figures |= overlap_figures(subject, examples.pairs, quiet=as_json)
    return {**figures, "seconds": round(seconds, 1)}, compared


def _span_figures(
    subject: str, data: Path, rules: RowRules, options: dict[str, Any], connection: Connection, *, as_json: bool
) -> dict[str, Any]:
    """The scores of a tagger: a checkpoint in PyTorch, a bundle in a temporary server, or a running server."""
    from export.bundle.manifest import MANIFEST
    from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
    from model.encoder import Encoder
    from model.training.data.encoder_data import spans_by_text
    from model.training.data.examples import DataError
    from model.training.data.labelled_spans import LabelledSpan, found_spans, span_scores
    from model.training.data.text_files import read_tsv

    with contextlib.ExitStack() as stack:
        stack.enter_context(report_errors(DataError, CheckpointError))
        examples = read_tsv([data], rules=rules)
        texts, expected = [text for text, _ in examples.pairs], spans_by_text(examples)
        started, is_bundle = time.monotonic(), (Path(subject) / MANIFEST).is_file()
        if not is_bundle and (Path(subject).exists() or ":" not in subject):
            checkpoint = load_checkpoint(Path(subject))
            if not isinstance(checkpoint.model, Encoder) or not checkpoint.config.is_tagger:
                raise UsageError(f"{subject}: has no labels of tokens; --spans is for models with head tokens")
            tell = partial(stack.enter_context(progress()), "labelling")
            model = checkpoint.model.eval()
            found = found_spans(model, checkpoint.tokenizer, texts, answered=lambda done: tell(done, len(texts)))
        else:
            server = stack.enter_context(reached(subject, connection, is_bundle=is_bundle))
            stack.enter_context(report_call_errors(server))
            client, name = stack.enter_context(server.client()), options.get("model", "")
            tell = partial(stack.enter_context(progress()), "labelling")
            found = []
            for text in texts:
                spans = client.tag(text, model=name).spans
                found.append([LabelledSpan(*one.span, one.label) for one in spans])
                tell(len(found), len(texts))
        scores = {name: round(value, 4) for name, value in span_scores(found, expected)._asdict().items()}
        seen = overlap_figures(subject, examples.pairs, quiet=as_json)
        return {**scores, **seen, "texts": len(texts), "seconds": round(time.monotonic() - started, 1)}


def confidence_figures(
    answers: Sequence[tuple[str, Confidence | None]], references: Sequence[str]
) -> tuple[dict[str, float], list[Judged]]:
    """Figures of the answers' confidence, and the answers compared with their references. Raises UsageError."""
    from cli.training.confidence_report import figures, judged
    from model.training.evaluate import bleu, chrf

    compared = judged([(text, sure) for text, sure in answers if sure is not None], references)
    return figures(compared, {"BLEU": lambda texts, wanted: bleu(texts, wanted).score, "chrF": chrf}), compared


def translations(
    subject: str, texts: list[str], options: dict[str, Any], connection: Connection
) -> list[tuple[str, Confidence | None]]:
    """Translations by a checkpoint in PyTorch, by a bundle in a temporary server, or by a running server, with their
    confidence if the options request it."""
    from export.bundle.manifest import MANIFEST
    from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
    from model.config import LanguagePair
    from model.training.data.languages import check_languages
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
            if options.get("confidence"):
                raise UsageError(f"{subject}: a checkpoint has no confidence; export it with --calibrate")
            if options.keys() - MODEL.keys() - {"beam_size"} or options.get("beam_size", 1) != 1:
                raise UsageError(f"{subject}: a checkpoint is decoded greedily; export it to use --beam and {FLAG}")
            languages = LanguagePair(options.get("source_language") or "", options.get("target_language") or "")
            check_languages(checkpoint.config.template, languages)
            tell = partial(stack.enter_context(progress()), "translating")
            found = translate_in_torch(
                checkpoint.model,
                checkpoint.tokenizer,
                texts,
                languages=languages,
                answered=lambda done: tell(done, len(texts)),
            )
            return [(text, None) for text in found]
        server = stack.enter_context(reached(subject, connection, is_bundle=is_bundle))
        stack.enter_context(report_call_errors(server))
        client, tell = stack.enter_context(server.client()), partial(stack.enter_context(progress()), "translating")
        answers = []
        for answer in client.translate_batch(texts, **options):
            answers.append((answer.text, answer.confidence))
            tell(len(answers), len(texts))
        return answers


def overlap_figures(subject: str, pairs: Sequence[tuple[str, str]], *, quiet: bool) -> dict[str, int | None]:
    """The numbers of test rows that were in the training data of a checkpoint, None where they are unknown: also where
    no row was seen, but a part of the training records none. Prints a sentence on stderr, with the first rows seen.

    subject: a checkpoint that was loaded without an error, or anything else, of which nothing is known. quiet: prints
    nothing unless there are such rows or unknown parts. Raises CheckpointError.
    """
    from model.checkpoints.training_rows import read_training_rows

    rows = read_training_rows(Path(subject))
    if rows is None:
        if not quiet:
            typer.echo(f"{subject}: whether test rows were in the training data is unknown: {REASON}", err=True)
        return {SOURCES: None, PAIRS: None}
    overlap = rows.overlap(pairs)
    if overlap.sources or overlap.unknown or not quiet:
        typer.echo(overlap.describe("test"), err=True)
    counts = {SOURCES: len(overlap.sources), PAIRS: len(overlap.pairs)}
    return {name: None if overlap.unknown and not count else count for name, count in counts.items()}
