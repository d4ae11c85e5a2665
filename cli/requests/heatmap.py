"""Attention heat maps: as lines for a terminal, with or without colour, and as an image file.

Only `draw` imports matplotlib, which a serving installation lacks. `cli.requests.attention_page` writes the HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from cli.terminal import UsageError
from glossa.client.types import Attended, AttentionMatrix, AttentionToken

SHADES = " ·░▒▓█"
"""Characters for a weight relative to the largest weight of its map, for terminals without colour."""

COLOURS = ("#5b6575", "#7d8aa0", "#6f9bd1", "#3f7fca", "#e07b39", "#b3430e")
"""Colours for the same steps; distinct on light and dark backgrounds and with red-green colour blindness."""

CELL = 2  # characters per weight, so that a cell is about square
LABEL, TALL = 16, 10  # longest row and column labels, characters
LABELLED = 4  # an image with at most this many maps has token labels


def label(token: AttentionToken) -> str:
    """The text of a token without its leading blank; ␣ for a token of blanks."""
    return token.text.strip() or "␣"


def title(matrix: AttentionMatrix) -> str:
    """The kind, layer and head of a map."""
    layer = f"layer {matrix.layer}" if matrix.layer else "mean of layers"
    head = f"head {matrix.head}" if matrix.head else "mean of heads"
    return f"{matrix.kind}, {layer}, {head}"


def lines(attended: Attended, matrix: AttentionMatrix, *, width: int = 80) -> Iterator[Text]:
    """One map: vertical column labels, then one line per row. Columns beyond `width` characters are printed below."""
    rows = [label(token) for token in attended.rows(matrix.kind)]
    columns = [label(token) for token in attended.columns(matrix.kind)]
    most = max(max(row) for row in matrix.rows)
    space = min(LABEL, max(map(len, rows)))
    columns_per_block = max(1, (width - space - 1) // CELL)
    yield Text(title(matrix), style="bold")
    for first in range(0, len(columns), columns_per_block):
        yield from _vertical_labels(columns[first : first + columns_per_block], space)
        for name, weights in zip(rows, matrix.rows, strict=True):
            line = Text(f"{_cut(name, space):>{space}} ")
            for weight in weights[first : first + columns_per_block]:
                shade = _shade(weight, most)
                line.append(SHADES[shade] * CELL, style=COLOURS[shade])
            yield line


def _vertical_labels(names: Sequence[str], space: int) -> Iterator[Text]:
    """Lines of vertical labels, aligned at the bottom."""
    cut = [_cut(name, TALL) for name in names]
    height = max(map(len, cut))
    for place in range(height):
        letters = [f"{name.rjust(height)[place]:<{CELL}}" for name in cut]
        yield Text(" " * (space + 1) + "".join(letters).rstrip(), style="dim")


def _shade(weight: float, most: float) -> int:
    """The index into SHADES and COLOURS: equal intervals from 0 to the largest weight."""
    share = weight / most if most > 0 else 0.0
    return min(len(SHADES) - 1, int(share * len(SHADES)))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def draw(attended: Attended, file: Path) -> None:
    """Draw all maps on one scale, one row of maps per kind and layer. The suffix of `file` selects the format.

    Raises UsageError, OSError.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--png needs matplotlib, which is not installed; fix: pip install matplotlib, or use --html instead"
        ) from None
    by_layer: dict[tuple[str, int], list[AttentionMatrix]] = {}
    for matrix in attended.matrices:
        by_layer.setdefault((matrix.kind, matrix.layer), []).append(matrix)
    columns = max(map(len, by_layer.values()))
    has_names = len(attended.matrices) <= LABELLED
    longest = max(len(attended.rows("decoder")), len(attended.columns("encoder")), 1)
    side = max(4.0, 0.28 * longest + 1.5) if has_names else 1.8
    figure = Figure(figsize=(side * columns, side * len(by_layer)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(by_layer), columns, squeeze=False)
    most = max(max(map(max, matrix.rows)) for matrix in attended.matrices)
    for row, matrices in zip(axes, by_layer.values(), strict=True):
        for index, axis in enumerate(row):
            if index >= len(matrices):
                axis.set_axis_off()
                continue
            matrix = matrices[index]
            image = axis.imshow(matrix.rows, cmap="Blues", vmin=0.0, vmax=most, aspect="equal", interpolation="nearest")
            axis.set_title(title(matrix), fontsize=10 if has_names else 7)
            names = (attended.columns(matrix.kind), attended.rows(matrix.kind)) if has_names else ((), ())
            axis.set_xticks(range(len(names[0])), map(label, names[0]), rotation=90)
            axis.set_yticks(range(len(names[1])), map(label, names[1]))
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.6)
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:  # an unknown format
        raise UsageError(f"{file}: {error}") from None
