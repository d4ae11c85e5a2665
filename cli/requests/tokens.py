"""`glossa tokens`: the tokens of texts, as a model on a running server reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import with_client
from cli.flags import with_model_flags
from cli.requests.encode import Text
from cli.terminal import AsJson, UsageError, print_json
from cli.text_input import lines_of

if TYPE_CHECKING:
    from glossa.client import Client
    from glossa.client.types import TokenCount

BATCH = 256  # lines counted by one call
BATCH_BYTES = 1 << 16  # of their text; a server accepts messages of 256 KiB


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
        if special:
            raise UsageError("--special: needs a text or --target, as lines of standard input are counted, not listed")
        return _count(client, list(lines_of()), as_json, options)
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
    first = 1
    for block in blocks(lines):
        for counted in _counts(client, block, first, options):
            if as_json:
                print_json(counted)
                continue
            problems = ["exceeds the limit"] if counted.exceeds_limit else []
            problems += [f"unknown: {' '.join(counted.unknown_words)}"] if counted.unknown_words else []
            typer.echo("\t".join([str(counted.tokens), *problems]))
        first += len(block)


def blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines in lists of at most BATCH lines and BATCH_BYTES, or of one longer line."""
    block: list[str] = []
    size = 0
    for line in lines:
        added = len(line.encode())
        if block and (len(block) == BATCH or size + added > BATCH_BYTES):
            yield block
            block, size = [], 0
        block.append(line)
        size += added
    if block:
        yield block


def _counts(client: Client, block: list[str], first: int, options: dict[str, Any]) -> list[TokenCount]:
    """The counts of some lines. first: the number of the first one. Raises UsageError with the number of a line that
    is refused, ClientError if the server cannot be reached."""
    from glossa.client import ClientError

    try:
        return client.count_tokens(block, **options)
    except ClientError as error:
        if error.code == "UNAVAILABLE":
            raise
        found = re.search(r"texts\[(\d+)\]: ", str(error))
        if found is None:
            raise UsageError(f"lines {first} to {first + len(block) - 1}: {error}") from error
        message = str(error).replace(found.group(), "", 1)
        raise UsageError(f"line {first + int(found.group(1))}: {message}") from error
