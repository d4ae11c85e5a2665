"""Attention as heat maps: lines for a terminal, with or without colours, and a picture.

matplotlib draws the picture and is imported only then, because a serving install has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from glossa.client.types import Attended, AttentionMatrix, AttentionToken

SHADES = " ·░▒▓█"
"""A weight's share of the largest one in its map, so that a map can be read without colours."""

COLOURS = ("#5b6575", "#7d8aa0", "#6f9bd1", "#3f7fca", "#e07b39", "#b3430e")
"""The same in colours that stay apart on light and dark paper and for those who see no red or green."""

CELL = 2  # characters of a weight: about as wide as a line is high
LABEL, TALL = 16, 10  # characters of a token at the left, and on top
LABELLED = 4  # maps of a picture that have room for the names of their tokens


class DrawingError(Exception):
    """A picture cannot be drawn here."""


def label(token: AttentionToken) -> str:
    """What stands for a token: its text without the blank before it, and a mark where that is all."""
    return token.text.strip() or "␣"


def title(matrix: AttentionMatrix) -> str:
    layer = f"layer {matrix.layer}" if matrix.layer else "mean of layers"
    head = f"head {matrix.head}" if matrix.head else "mean of heads"
    return f"{matrix.kind}, {layer}, {head}"


def lines(attended: Attended, matrix: AttentionMatrix, *, width: int = 80) -> Iterator[Text]:
    """One map: names of the columns from top to bottom, then a line for each row. Columns that do not fit beside each
    other in `width` characters follow below."""
    rows = [label(token) for token in attended.rows(matrix.kind)]
    columns = [label(token) for token in attended.columns(matrix.kind)]
    most = max(max(row) for row in matrix.rows)
    space = min(LABEL, max(map(len, rows)))
    at_once = max(1, (width - space - 1) // CELL)
    yield Text(title(matrix), style="bold")
    for first in range(0, len(columns), at_once):
        yield from _standing(columns[first : first + at_once], space)
        for name, weights in zip(rows, matrix.rows, strict=True):
            line = Text(f"{_cut(name, space):>{space}} ")
            for weight in weights[first : first + at_once]:
                shade = _shade(weight, most)
                line.append(SHADES[shade] * CELL, style=COLOURS[shade])
            yield line


def _standing(names: Sequence[str], space: int) -> Iterator[Text]:
    """Names side by side, each from top to bottom, all of them ending in the last line."""
    cut = [_cut(name, TALL) for name in names]
    height = max(map(len, cut))
    for place in range(height):
        letters = [f"{name.rjust(height)[place]:<{CELL}}" for name in cut]
        yield Text(" " * (space + 1) + "".join(letters).rstrip(), style="dim")


def _shade(weight: float, most: float) -> int:
    """0 for next to nothing, the last for the largest; the others share what is between evenly."""
    share = weight / most if most > 0 else 0.0
    return min(len(SHADES) - 1, int(share * len(SHADES)))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def draw(attended: Attended, file: Path) -> None:
    """All maps as one picture, in the format that the file's name ends with. Raises DrawingError, OSError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DrawingError(
            "a picture needs matplotlib, which is not installed here; fix: pip install matplotlib, or take --html, "
            "which needs nothing"
        ) from None
    lines_of: dict[tuple[str, int], list[AttentionMatrix]] = {}
    for matrix in attended.matrices:
        lines_of.setdefault((matrix.kind, matrix.layer), []).append(matrix)
    across = max(map(len, lines_of.values()))
    has_names = len(attended.matrices) <= LABELLED
    longest = max(len(attended.rows("decoder")), len(attended.columns("encoder")), 1)
    side = max(4.0, 0.28 * longest + 1.5) if has_names else 1.8
    figure = Figure(figsize=(side * across, side * len(lines_of)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(lines_of), across, squeeze=False)
    for line, matrices in zip(axes, lines_of.values(), strict=True):
        for place, axis in enumerate(line):
            if place >= len(matrices):
                axis.set_axis_off()
                continue
            matrix = matrices[place]
            axis.imshow(matrix.rows, cmap="Blues", vmin=0.0, aspect="equal", interpolation="nearest")
            axis.set_title(title(matrix), fontsize=10 if has_names else 7)
            names = (attended.columns(matrix.kind), attended.rows(matrix.kind)) if has_names else ((), ())
            axis.set_xticks(range(len(names[0])), map(label, names[0]), rotation=90)
            axis.set_yticks(range(len(names[1])), map(label, names[1]))
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:  # a format that is none
        raise DrawingError(f"{file}: {error}") from None
