"""Marks uncertain words of an answer: underlined in colour in a terminal, in brackets elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer


def marked(text: str, spans: Sequence[tuple[int, int]], *, in_terminal: bool | None = None) -> str:
    """A text with parts of it marked. spans: ascending, without overlap. in_terminal: by default whether standard
    output is one."""
    if in_terminal is None:
        in_terminal = sys.stdout.isatty()
    parts, read = [], 0
    for start, end in spans:
        word = text[start:end]
        mark = typer.style(word, fg=typer.colors.YELLOW, underline=True) if in_terminal else f"[{word}]"
        parts += [text[read:start], mark]
        read = end
    return "".join([*parts, text[read:]])
