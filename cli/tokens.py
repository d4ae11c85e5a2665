"""`glossa tokens`: the tokens of texts, as a model on a running server reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import with_client
from cli.encode import Text, texts_of
from cli.flags import with_model_flags
from cli.terminal import AsJson, UsageError, print_json

if TYPE_CHECKING:
    from glossa.client import Client

BATCH = 256  # lines counted by one call


@with_model_flags
@with_client
def tokens(
    text: Text = None,
    target: Annotated[str, typer.Option(help="instead of the text: a target of a translation model")] = "",
    special: Annotated[bool, typer.Option("--special", help="also show the special tokens around the text")] = False,
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """List the tokens of a text, or count those of each line of standard input.

    A token is shown with its id, its place in the text and its characters. A count includes special tokens, as the
    model's limit does; an excess and unknown words are reported after it.
    """
    if text is not None and target:
        raise UsageError("--target: must be left out with a text")
    if text is None and not target:
        return _count(client, texts_of(None), as_json, options)
    found = client.tokenize(text or "", target=target, add_special_tokens=special, **options)
    if as_json:
        return print_json(found)
    for token in found.tokens:
        start, end = token.span
        shown = token.text if token.is_special else json.dumps(token.text, ensure_ascii=False)
        typer.echo(f"{token.token:7}  {f'{start}..{end}':>9}  {shown}")
    limit, room = found.limits.max_prompt_tokens, found.limits.max_new_tokens
    typer.echo(f"{found.count} tokens of at most {limit}; room for {room} new ones", err=True)


def _count(client: Client, lines: list[str], as_json: bool, options: dict[str, Any]) -> None:
    for first in range(0, len(lines), BATCH):
        for counted in client.count_tokens(lines[first : first + BATCH], **options):
            if as_json:
                print_json(counted)
                continue
            problems = ["exceeds the limit"] if counted.exceeds_limit else []
            problems += [f"unknown: {' '.join(counted.unknown_words)}"] if counted.unknown_words else []
            typer.echo("\t".join([str(counted.tokens), *problems]))
