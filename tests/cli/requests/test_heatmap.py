"""Heat maps that can be read: in a terminal with and without colours, and as a picture."""

import sys

import pytest
from rich.console import Console

from cli.requests.heatmap import draw, label, lines
from cli.terminal import UsageError
from glossa.client.types import AttentionToken
from tests.cli.requests.attended import attended


def printed(reported, matrix, width=200):
    plain = Console(width=width, color_system=None)
    with plain.capture() as capture:
        for line in lines(reported, matrix, width=width):
            plain.print(line, no_wrap=True, crop=False)
    return capture.get().splitlines()


def test_a_map_is_readable_without_colour():
    reported = attended()
    first, *rest = printed(reported, reported.matrices[0])
    assert first == "encoder, layer 1, head 1"
    (row,) = [line for line in rest if line.strip().startswith("it ")]
    assert row.index("██") == row.index("it") + 3 + 2  # the second column: "animal"
    assert row.count("█") == 2


def test_column_labels_are_vertical_above_their_columns():
    reported = attended()
    _, *rest = printed(reported, reported.matrices[0])
    space = len("because") + 1
    header = rest[: len(rest) - len(reported.source)]
    column = "".join(line[space + 2 : space + 3] or " " for line in header)
    assert column.strip() == "animal"


def test_columns_beyond_the_width_are_printed_below():
    reported = attended()
    wide, narrow = printed(reported, reported.matrices[2]), printed(reported, reported.matrices[2], width=24)
    assert max(map(len, narrow)) <= 24 < max(map(len, wide))
    rows = len(reported.predicted)
    assert sum(line.strip().startswith("river") for line in narrow) > sum(
        line.strip().startswith("river") for line in wide
    )
    assert "".join(wide[-rows:]).count("█") == "".join(narrow).count("█")


def test_weights_are_coloured_in_a_colour_terminal():
    reported = attended()
    console = Console(width=200, color_system="truecolor", force_terminal=True)
    with console.capture() as capture:
        for line in lines(reported, reported.matrices[0], width=200):
            console.print(line)
    assert "\x1b[38;2;179;67;14m██" in capture.get()


def test_a_token_of_blanks_has_a_visible_label():
    assert [label(AttentionToken(0, text, (0, 0))) for text in (" the", " ", "<eos>")] == ["the", "␣", "<eos>"]


def test_an_image_is_drawn(tmp_path):
    draw(attended(), tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="not supported"):
        draw(attended(), tmp_path / "maps.txt")


def test_an_image_without_matplotlib_fails_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match="pip install matplotlib, or use --html"):
        draw(attended(), tmp_path / "maps.png")
