"""The verbs for encoders: they send texts to a running server and print vectors, similarities, words for masks, labels
or spans."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.connection import at_line, with_client
from cli.flags import ModelName, with_model_flags
from cli.terminal import AsJson, UsageError, print_json
from cli.text_input import lines_of

if TYPE_CHECKING:
    from glossa.client import Client

LARGEST = (2 - 2**-23) * 2.0**127  # of 32-bit floats, in which vectors travel
SHOWN = 30  # characters of a text in a warning
PoolingName = Literal["mean", "cls", "max", "last", "pooler", "mean_sqrt_len", "weighted_mean"]
PromptName = Annotated[
    str | None,
    typer.Option(help="name of the model's prompt before each text; default: the model's own; '': none"),
]
Text = Annotated[str | None, typer.Argument(help="a text; without one, each line of standard input")]


def answer_texts(text: str | None, answer: Callable[[str], None]) -> None:
    """Answer the text of the command line, or each line of standard input: a blank one by a blank line. Raises
    UsageError with the number of a line that is refused."""
    if text is not None:
        return answer(text)
    for number, line in enumerate(list(lines_of()), start=1):
        if not line.strip():
            typer.echo()
            continue
        with at_line(number):
            answer(line)


@with_model_flags
@with_client
def embed(
    text: Text = None,
    pooling: Annotated[
        PoolingName | None,
        typer.Option(
            help="mean, largest values, first (cls) or last of the last hidden states; the first through the model's "
            "pooler; their sum divided by the root of their number; their mean weighted by position; default: the "
            "model's own"
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="scale to length 1, so that dot products are cosines")
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="a vector for each token: one JSON object a line")] = False,
    prompt_name: PromptName = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="leave out the end of a text that is too long, with a warning")
    ] = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Embed a text, or each line of standard input: one JSON array a line."""
    given = {"--pooling": pooling is not None, "--prompt-name": prompt_name is not None, "--truncate": truncate}
    if tokens and any(given.values()):
        flag = next(flag for flag, is_given in given.items() if is_given)
        raise UsageError(f"{flag}: must be left out with --tokens, whose vectors are those of a text's own tokens")
    how: dict[str, Any] = {"pooling": pooling, "prompt_name": prompt_name, "truncate": truncate}

    def answer(line: str) -> None:
        if not tokens:
            vector = client.embed(line, normalize=normalize, **how, **options)
            if vector.truncated:
                shown = f"of {line[:SHOWN]!r}… the first {vector.prompt_tokens} tokens were read"
                typer.echo(f"warning: {shown}, with those of a prompt and special ones", err=True)
            return print_json(vector)
        for token in client.embed_tokens(line, normalize=normalize, **options):
            print_json(token)

    answer_texts(text, answer)


@with_model_flags
@with_client
def similarity(
    texts: Annotated[list[str] | None, typer.Argument(help="texts; without any, the lines of standard input")] = None,
    measure: Annotated[
        Literal["cosine", "dot", "euclidean"], typer.Option(help="cosine, dot product, or Euclidean distance")
    ] = "cosine",
    pooling: Annotated[PoolingName | None, typer.Option(help="as of embed")] = None,
    prompt_name: PromptName = None,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="compare vectors, such as embed prints: each is a JSON array")
    ] = False,
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Compare texts with one another, by their embeddings: a number for two, otherwise a row of numbers for each."""
    items: list[Any] = texts or list(lines_of())
    if len(items) < 2:
        raise UsageError(f"TEXTS: must be at least 2, got {len(items)}")
    if vectors:
        items = [_vector(item, place) for place, item in enumerate(items, start=1)]
    rows = client.similarity(items, measure=measure, pooling=pooling, prompt_name=prompt_name, **options)
    if as_json:
        return print_json(rows)
    for row in [[rows[0][1]]] if len(items) == 2 else rows:
        typer.echo("\t".join(f"{value:.6g}" for value in row))


def _vector(text: str, place: int) -> list[float]:
    """A vector from the command line. place: from 1."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise UsageError(f"--vectors: vector {place} must be a JSON array of numbers, got {text[:60]!r}")
    if not all(abs(value) <= LARGEST for value in values):
        problem = f"--vectors: vector {place} must have numbers of at most {LARGEST:.2g}, got {text[:60]!r}"
        raise UsageError(f"{problem}; scale it")
    return values


@with_client
def fill_mask(
    text: Text = None,
    model: ModelName = "",
    top_k: Annotated[int, typer.Option(help="tokens shown for each mask")] = 5,
    as_json: AsJson = False,
    *,
    client: Client,
) -> None:
    """Predict the masked tokens of a text, most likely first.

    A text without a mask is rejected; the error shows how the model's mask token is written.
    """

    def answer(line: str) -> None:
        masks = client.fill_mask(line, model=model, top_k=top_k)
        if as_json:
            return print_json([[dataclasses.asdict(filling) for filling in fillings] for fillings in masks])
        for number, fillings in enumerate(masks, start=1):
            for filling in fillings:
                typer.echo(f"{number:2}  {filling.probability:.4f}  {filling.text.strip()}")

    answer_texts(text, answer)


@with_client
def classify(
    text: Text = None,
    model: ModelName = "",
    weights: Annotated[bool, typer.Option("--weights", help="also show the weight of each token")] = False,
    as_json: AsJson = False,
    *,
    client: Client,
) -> None:
    """Classify a text: all labels, most likely first; for each line of standard input the most likely label."""
    if weights and text is None and not as_json:
        raise UsageError(
            "--weights: needs a text or --json, as a line of standard input is answered by its label alone"
        )

    def answer(line: str) -> None:
        result = client.classify(line, model=model, token_weights=weights)
        if as_json:
            return print_json(result)
        if text is None:
            return typer.echo(f"{result.labels[0].label}\t{result.labels[0].probability:.4f}")
        for label in result.labels:
            typer.echo(f"{label.probability:.4f}  {label.label}")
        for token in result.token_weights:
            typer.echo(f"      {token.weight:.4f}  {line[slice(*token.span)].strip() or '(special token)'}")

    answer_texts(text, answer)


@with_client
def tag(
    text: Text = None,
    model: ModelName = "",
    tokens: Annotated[bool, typer.Option("--tokens", help="also show the label of each token")] = False,
    as_json: AsJson = False,
    *,
    client: Client,
) -> None:
    """Find the labelled spans of a text, or of each line of standard input, in whose answers a blank line follows."""

    def answer(line: str) -> None:
        result = client.tag(line, model=model, include_tokens=tokens)
        if as_json:
            return print_json(result)
        for span in result.spans:
            typer.echo(f"{span.probability:.4f}  {span.label}\t{span.text}")
        for token in result.tokens:
            typer.echo(f"      {token.probability:.4f}  {token.label}\t{token.text.strip()}")
        if text is None:
            typer.echo()

    answer_texts(text, answer)
