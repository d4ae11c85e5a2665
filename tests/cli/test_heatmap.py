"""Heat maps that can be read: in a terminal with and without colours, as a picture, and as a page of its own."""

import json
import re
import sys

import pytest
from rich.console import Console

from cli.attention_page import page, page_data
from cli.heatmap import DrawingError, draw, label, lines
from glossa.client.types import Attended, AttentionMatrix, AttentionToken

ANIMAL = "The animal didn't cross the street because it was too tired"
BANK = "I arrived at the bank after crossing the river"


def tokens(text, *more):
    words = [" " * bool(place) + word for place, word in enumerate(text.split())]
    return tuple(AttentionToken(place, word, (0, 0)) for place, word in enumerate((*words, *more)))


def even(count, at=None):
    """Weights that are all the same, or one that is everything."""
    return tuple(float(place == at) if at is not None else 1 / count for place in range(count))


def attended(source=ANIMAL, target=BANK):
    theirs, ours = tokens(source, "<eos>"), tokens(target)
    predicted = (*ours[1:], AttentionToken(2, "<eos>", (0, 0)))
    it = source.split().index("it") if "it" in source.split() else 0
    cross = tuple(even(len(theirs), place % len(theirs)) for place in range(len(predicted)))
    encoder = tuple(even(len(theirs), 1 if place == it else None) for place in range(len(theirs)))
    matrices = [AttentionMatrix("encoder", 1, head, encoder) for head in (1, 2)]
    matrices.append(AttentionMatrix("cross", 2, 0, cross))
    return Attended(
        source=theirs,
        target=ours,
        predicted=predicted,
        target_text=target,
        finish_reason="length",
        matrices=tuple(matrices),
        prompt_tokens=1,
        generated_tokens=1,
        queue_s=0.0,
        prefill_s=0.0,
        total_s=0.0,
    )


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


def test_a_page_contains_all_weights_and_needs_no_network():
    reported = attended()
    html = page(reported, text=ANIMAL, model="demo")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    data_of_page = json.loads(data)
    assert data_of_page == json.loads(json.dumps(page_data(reported, text=ANIMAL, model="demo")))
    assert (data_of_page["text"], data_of_page["answer"], data_of_page["model"]) == (ANIMAL, BANK, "demo")
    assert data_of_page["kinds"] == [
        {"kind": "encoder", "layers": [1], "heads": [1, 2]},
        {"kind": "cross", "layers": [2], "heads": [0]},
    ]
    assert [len(matrix["weights"]) for matrix in data_of_page["matrices"]] == [144, 144, 108]
    assert data_of_page["matrices"][0]["weights"][:12] == [round(1 / 12, 4)] * 12
    assert [token["text"] for token in data_of_page["predicted"]][-2:] == [" river", "<eos>"]
    assert not re.search(r"https?://|//cdn|@import|url\(", html)
    assert "@DATA@" not in html


def test_text_in_the_page_is_escaped():
    text = "</script><script>alert(1)</script> <!-- & @DATA@"
    html = page(attended(), text=text)
    assert html.count("<script") == 2
    (data,) = re.findall(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert json.loads(data)["text"] == text


def test_an_image_is_drawn(tmp_path):
    draw(attended(), tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DrawingError, match="not supported"):
        draw(attended(), tmp_path / "maps.txt")


def test_an_image_without_matplotlib_fails_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DrawingError, match="pip install matplotlib, or use --html"):
        draw(attended(), tmp_path / "maps.png")
