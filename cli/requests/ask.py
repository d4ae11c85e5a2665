"""`glossa translate`, `glossa generate`, `glossa score`: send texts to a running server and print the answers."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import at_line, with_client
from cli.flag_names import with_flags_named
from cli.flags import ModelName, with_decoding_flags, with_scoring_flags, with_translation_flags
from cli.requests.translate_document import Format, translate_document
from cli.terminal import AsJson, UsageError, one_line, print_json, report_errors, show
from cli.text_input import lines_of, read_text

if TYPE_CHECKING:
    from glossa.client import Client, ClientError
    from glossa.client.types import Alignment, Answer, Confidence, TokenLogprob

DOCUMENT = "Document"  # a group of flags
MAX_CONTEXT = 64  # sentences: a manifest allows no more
SplitSentences = Annotated[
    bool | None,
    typer.Option(
        "--split-sentences/--no-split-sentences",
        help="translate a text sentence by sentence, or as a whole; default: as the model was trained",
    ),
]
SplitterLanguage = Annotated[
    str, typer.Option(help="whose rules split texts into sentences, by its code; und: paragraphs alone")
]


@with_translation_flags
@with_client
def translate(
    text: Annotated[str | None, typer.Argument(help="a text; without one, each line of standard input")] = None,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="print how sure the model is of each answer, and mark uncertain words")
    ] = False,
    uncertain_below: Annotated[
        float | None, typer.Option(help="mark words whose confidence is below this, 0 .. 1; default: 0.5")
    ] = None,
    as_json: AsJson = False,
    markup: Annotated[str, typer.Option(help="keep marks: some of tags,placeholders,urls,numbers")] = "",
    glossary: Annotated[
        str, typer.Option(help="terms: a file of SOURCE<tab>FORM|FORM, its name with . or /; or a name on the server")
    ] = "",
    split_sentences: SplitSentences = None,
    splitter_language: SplitterLanguage = "",
    document: Annotated[str, typer.Option(help="a file to translate as a whole, or -", rich_help_panel=DOCUMENT)] = "",
    format: Annotated[
        Format | None,
        typer.Option(help="of the document; default: by its suffix; text for standard input", rich_help_panel=DOCUMENT),
    ] = None,
    context_sentences: Annotated[
        int, typer.Option(min=0, max=MAX_CONTEXT, help="sentences read before each one", rich_help_panel=DOCUMENT)
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="file for the translated document", rich_help_panel=DOCUMENT)] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            help="translate the lines of this file (-: standard input) in one call; lines that fail do not stop it"
        ),
    ] = None,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Translate a text, streamed, or each line of standard input, many at a time and in order, or a document.

    For each line of input one line is printed, or one for each of several hypotheses. Line breaks within an answer are
    printed as \\n and \\r; --json prints the exact text. With --confidence a line begins with the expected share of
    right words, and uncertain words are coloured, or in brackets outside a terminal, unless --markup has put marks into
    it. With marks or a glossary nothing is streamed. With --document, everything but text is copied, and segments below
    --uncertain-below are listed.
    """
    if not document and (format or out or context_sentences):
        raise UsageError("--format, --context-sentences and --out: need --document")
    options |= splitting_options(split_sentences, splitter_language, is_document=bool(document))
    options |= confidence_options(confidence, uncertain_below)
    with report_errors():
        options |= rewriting_options(markup, glossary)
    if [text is not None, bool(document), batch is not None].count(True) > 1:
        raise UsageError("give one of TEXT, --document FILE and --batch FILE")
    if document:
        settings: dict[str, Any] = {"context_sentences": context_sentences}
        return translate_document(client, document, out, as_json, options, format=format or "", **settings)
    if batch is not None:
        return translate_lines(client, batch, as_json, options)
    ask("translate", client, text, as_json, options)


@with_decoding_flags
@with_client
def generate(
    text: Annotated[str | None, typer.Argument(help="a prompt; without one, each line of standard input")] = None,
    model: ModelName = "",
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Continue a prompt, streamed, or each line of standard input.

    For each line of input one line is printed, or one for each of several hypotheses. Line breaks within an answer are
    printed as \\n and \\r; --json prints the exact text.
    """
    ask("generate", client, text, as_json, {"model": model, **options})


def confidence_options(confidence: bool, uncertain_below: float | None) -> dict[str, Any]:
    """The options that these flags give. Raises UsageError."""
    if uncertain_below is None:
        return {"confidence": True} if confidence else {}
    if not confidence:
        raise UsageError("--uncertain-below needs --confidence")
    if not 0 <= uncertain_below <= 1:
        raise UsageError(f"--uncertain-below: must be 0..1, got {uncertain_below:g}")
    return {"confidence": True, "uncertain_below": uncertain_below}


def splitting_options(split_sentences: bool | None, splitter_language: str, *, is_document: bool) -> dict[str, Any]:
    """The options that these flags give. Raises UsageError."""
    if is_document and split_sentences is not None:
        raise UsageError("--split-sentences: of a text; a document is always split")
    given = {"split_sentences": split_sentences, "splitter_language": splitter_language or None}
    return {name: value for name, value in given.items() if value is not None}


def rewriting_options(markup: str, glossary: str) -> dict[str, Any]:
    """The options of `--markup` and `--glossary`. Raises UsageError, OSError."""
    from glossa.v1 import glossa_pb2 as pb

    options: dict[str, Any] = {}
    if kinds := [kind.strip() for kind in markup.split(",") if kind.strip()]:
        known = pb.Markup.DESCRIPTOR.fields_by_name
        if unknown := [kind for kind in kinds if kind not in known]:
            raise UsageError(f"--markup: must be some of {','.join(known)}, got {unknown[0]!r}")
        options["markup"] = kinds
    if glossary:
        options["glossary"] = terms_of(glossary) if "." in glossary or "/" in glossary else glossary
    return options


def terms_of(path: str) -> list[Any]:
    """The terms of a file. Raises UsageError with the number of a line that cannot be read, OSError."""
    from glossa.v1 import glossa_pb2 as pb
    from service.text.glossary import read_terms

    if not Path(path).exists():
        problem = "no such file; a value with '.' or '/' is a file, the name of a glossary on the server has neither"
        raise UsageError(f"--glossary {path}: {problem}")
    try:
        terms = read_terms(read_text(path).splitlines())
    except ValueError as error:
        raise UsageError(f"--glossary {path}: {error}") from error
    return [pb.GlossaryTerm(source=one.source, targets=one.targets, ignore_case=one.ignore_case) for one in terms]


def ask(verb: str, client: Client, text: str | None, as_json: bool, options: dict[str, Any]) -> None:
    """One text streamed to the terminal, or the lines of standard input answered in order."""
    if text is None:
        return answer_lines(verb, client, as_json, options)
    several = options.get("num_hypotheses", 1) > 1 or options.get("num_sequences", 1) > 1
    late = ("markup", "glossary", "return_alternatives", "confidence")  # options whose text is known only at the end
    if several or any(options.get(name) for name in late):
        answer = (client.translate if verb == "translate" else client.generate)(text, **options)
        return show_answer(answer, text, as_json)
    shown = ""
    for piece in (client.stream_translate if verb == "translate" else client.stream_generate)(text, **options):
        if piece.answer is not None:
            show_answer(piece.answer, text, as_json, already=shown)
        elif not as_json:
            typer.echo(piece.text, nl=False)
            shown += piece.text


def answer_lines(verb: str, client: Client, as_json: bool, options: dict[str, Any]) -> None:
    """Print the answers to the lines of standard input; a blank line is answered by a blank line."""
    lines = list(lines_of())
    texts = (line for line in lines if line.strip())
    if verb == "translate":
        answers: Iterator[Answer] = client.translate_batch(texts, **options)
    else:
        answers = (client.generate(text, **options) for text in texts)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            typer.echo()
            continue
        with at_line(number):
            show_answer(next(answers), line, as_json, in_lines=True)


def translate_lines(client: Client, file: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Print a line for each line of a file; `-`: of standard input. A blank one is answered by a blank one.

    A line without an answer is printed as a blank one, with its error on standard error; with --json, as an object with
    the error. Then the exit code is 1. Raises ClientError if the call fails, OSError.
    """
    from glossa.client import ClientError

    lines = lines_of(file)
    waiting: deque[str] = deque()  # lines that are not answered, from the thread that reads them
    number, failed = 0, 0

    def texts() -> Iterator[str]:
        for text in lines:
            waiting.append(text)
            if text.strip():
                yield text

    with contextlib.closing(client.translate_batch(texts(), **options)) as batch:
        for outcome in batch.outcomes():
            while not (text := waiting.popleft()).strip():
                number += 1
                typer.echo()
            number += 1
            if isinstance(outcome, ClientError):
                failed += 1
                _show_failure(outcome, number, as_json)
            else:
                show_answer(outcome, text, as_json, in_lines=True)
    for _ in waiting:
        typer.echo()
    if failed:
        typer.echo(f"error: {failed} of {number + len(waiting)} lines have no answer", err=True)
        raise typer.Exit(1)


def _show_failure(error: ClientError, number: int, as_json: bool) -> None:
    if as_json:
        fields = {"code": error.code, "reason": error.reason, "message": error.message}
        return print_json({"error": fields, "line": number})
    typer.echo(with_flags_named(f"line {number}: {error}"), err=True)
    typer.echo()


def show_answer(answer: Answer, text: str, as_json: bool, *, already: str = "", in_lines: bool = False) -> None:
    """Print the part of an answer after `already`; several hypotheses are printed with their scores.

    in_lines: escape the line breaks of a text.
    """
    if as_json:
        return print_json(answer)
    several, written = len(answer.hypotheses) > 1, one_line if in_lines else str
    markup = getattr(answer, "markup", None)
    if not several or already:
        shown = sure_text(answer.text, answer.confidence, markup.plain_text if markup else "")
        typer.echo(written(shown[len(already) :]))
    for rank, hypothesis in enumerate(answer.hypotheses, start=1):
        if several:
            shown = sure_text(hypothesis.text, hypothesis.confidence, hypothesis.plain_text)
            typer.echo(f"{rank:2}  {hypothesis.score:8.4f}  {written(shown)}")
        show_tokens(hypothesis.token_logprobs)
        show_alignment(
            hypothesis.alignment, markup.source_text if markup else text, hypothesis.plain_text or hypothesis.text
        )
    if (terms := getattr(answer, "glossary", None)) and terms.unmet:
        typer.echo(f"terms without their translation: {', '.join(terms.unmet)}", err=True)
    for warning in answer.warnings:
        typer.echo(f"warning: {warning.message}", err=True)
    if answer.seed is not None:
        typer.echo(f"seed {answer.seed}", err=True)


def sure_text(text: str, confidence: Confidence | None, plain_text: str = "") -> str:
    """An answer; with its confidence before it and its uncertain words marked if that is known.

    plain_text: with markup the answer without its marks, in which the words of the confidence have their places; in an
    answer that differs from it, no word is marked as uncertain.
    """
    if confidence is None:
        return text
    return f"{confidence.sentence:.2f}  {marked(text, confidence.uncertain) if plain_text in ('', text) else text}"


def marked(text: str, spans: Sequence[tuple[int, int]], *, in_terminal: bool | None = None) -> str:
    """A text with parts of it marked: underlined in colour in a terminal, in brackets elsewhere.

    spans: ascending, without overlap. in_terminal: by default whether standard output is one.
    """
    if in_terminal is None:
        in_terminal = sys.stdout.isatty()
    parts, read = [], 0
    for start, end in spans:
        word = text[start:end]
        mark = typer.style(word, fg=typer.colors.YELLOW, underline=True) if in_terminal else f"[{word}]"
        parts += [text[read:start], mark]
        read = end
    return "".join([*parts, text[read:]])


def show_tokens(tokens: Iterable[TokenLogprob]) -> None:
    """Print a line for each token: its log-probability and the most likely tokens at its position."""
    for token in tokens:
        others = "   ".join(f"{other.text!r} {other.logprob:.4f}" for other in token.top_logprobs)
        typer.echo(f"      {token.logprob:9.4f}  {token.text!r:16}  {others}".rstrip())


def show_alignment(alignment: Alignment | None, source: str, target: str) -> None:
    """Print a line for each token of the answer: its source token, or the three with the largest weights."""
    if alignment is None:
        return
    words = [source[start:end].strip() or "(end)" for start, end in alignment.source_spans]
    for place, (start, end) in enumerate(alignment.target_spans):
        aligned = [words[alignment.positions[place]]] if alignment.positions else []
        if alignment.rows:
            weights = alignment.rows[place]
            heaviest = sorted(range(len(words)), key=lambda index: -weights[index])[:3]
            aligned += [f"{words[index]} {weights[index]:.2f}" for index in heaviest]
        typer.echo(f"      {target[start:end].strip() or '(end)':16}  {'   '.join(aligned)}")


@with_scoring_flags
@with_client
def score(
    text: Annotated[str | None, typer.Argument(help="source or prompt; without one, TSV on standard input")] = None,
    target: Annotated[str | None, typer.Argument(help="its translation or continuation")] = None,
    omit_eos: Annotated[bool, typer.Option("--open", help="the target continues: do not score its end token")] = False,
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Score a given target: score, log-probability, perplexity, and the log-probability of each token.

    Without arguments, score the lines SOURCE<tab>TARGET of standard input; each prints
    score<tab>log-probability<tab>perplexity.
    """
    if (text is None) != (target is None):
        raise UsageError("give both TEXT and TARGET, or neither")
    options["omit_eos"] = omit_eos
    if text is None or target is None:
        return score_lines(client, as_json, options)
    result = client.score(text, target, **options)
    if as_json:
        return print_json(result)
    show(
        {name: f"{getattr(result, name):.4f}" for name in ("score", "cumulative_logprob", "perplexity")}, as_json=False
    )
    show_tokens(result.tokens)
    show_alignment(result.alignment, text, target)


def score_lines(client: Client, as_json: bool, options: dict[str, Any]) -> None:
    """Print the scores of the lines SOURCE<tab>TARGET of standard input."""
    for number, line in enumerate(lines_of(), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise UsageError(f"line {number}: expected 2 tab-separated fields, got {len(fields)}")
        with at_line(number):
            result = client.score(*fields, **options)
        if as_json:
            print_json(result)
        else:
            typer.echo(f"{result.score:.4f}\t{result.cumulative_logprob:.4f}\t{result.perplexity:.4f}")
