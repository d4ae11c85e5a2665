"""`glossa attend`: the attention weights of a text and its answer, as a heat map, a picture, a page or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import with_client
from cli.flags import with_model_flags
from cli.terminal import AsJson, print_json

if TYPE_CHECKING:
    from glossa.client import Client
    from glossa.client.types import Attended


@with_model_flags
@with_client
def attend(
    text: Annotated[str, typer.Argument(help="a text")],
    target: Annotated[str, typer.Option(help="answer to analyse; without one the model generates it")] = "",
    text_only: Annotated[bool, typer.Option("--text-only", help="analyse the text alone, without an answer")] = False,
    max_tokens: Annotated[int, typer.Option(help="most tokens of a generated answer; 0: the model's own limit")] = 0,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="cross, encoder or decoder; may be repeated; default: between text and answer"),
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(help="a layer, from 1; may be repeated")] = None,
    head: Annotated[list[int] | None, typer.Option(help="a head, from 1; may be repeated")] = None,
    png: Annotated[Path | None, typer.Option(help="picture to write, with every selected layer and head")] = None,
    html: Annotated[Path | None, typer.Option(help="self-contained page to write, with the same")] = None,
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Show the attention weights between the tokens of a text and of its answer.

    The terminal shows means over layers and heads unless some are selected; pictures, pages and JSON contain each one.
    """
    from cli.requests.heatmap import draw

    model = options.get("model", "")
    options |= {"target": target, "text_only": text_only, "max_tokens": max_tokens}
    options |= {"kinds": kind or [], "layers": layer or [], "heads": head or []}
    in_terminal = not (png or html or as_json)
    if in_terminal:
        if not kind:
            options["kinds"] = attention_kinds(client, model, text_only=text_only)[-1:]
        options |= {"mean_layers": not layer, "mean_heads": not head}
    attended = client.attend(text, **options)
    if png:
        draw(attended, png)
    if html:
        from cli.requests.attention_page import page

        html.write_text(page(attended, text=text, model=model), encoding="utf-8")
    if as_json:
        print_json(attended)
    if in_terminal:
        show_attention(attended)


def attention_kinds(client: Client, model: str, *, text_only: bool) -> list[str]:
    """The kinds of attention that a model reports, the one between text and answer last."""
    from glossa.client.types import attention_kind

    kinds = [attention_kind(one.kind) for one in client.get_model(model).attention]
    return kinds[:1] if text_only else kinds


def show_attention(attended: Attended) -> None:
    """Print one heat map per matrix, in colour if the terminal supports it."""
    from rich.console import Console

    from cli.requests.heatmap import lines

    console = Console(highlight=False)
    if attended.target_text:
        console.print(attended.target_text, markup=False)
    for matrix in attended.matrices:
        console.print()
        for line in lines(attended, matrix, width=console.width):
            console.print(line, no_wrap=True, crop=False)
