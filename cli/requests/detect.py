"""`glossa detect`: which languages texts are in, as a running server sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import with_client
from cli.requests.tokens import blocks
from cli.text_input import lines_of

if TYPE_CHECKING:
    from glossa.client import Client

INPUT = "-"


@with_client
def detect(
    text: Annotated[str, typer.Argument(help="a text; -: each line of standard input")] = INPUT,
    languages: Annotated[list[str] | None, typer.Argument(help="consider these alone, by their codes")] = None,
    *,
    client: Client,
) -> None:
    """Print the most probable languages of a text, or of each line of standard input, and their probabilities.

    Each line is CODE<tab>PROBABILITY, of at most three languages, the best first; a text without words has a blank
    line. The shorter a text, the more it helps to name the languages that it may be in.
    """
    for block in blocks([text] if text != INPUT else list(lines_of())):
        for found in client.detect_language(block, languages=languages or ()):
            typer.echo("\t".join(f"{one.language}\t{one.probability:.3f}" for one in found))
