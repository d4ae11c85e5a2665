import pytest

from service.text.documents.layout import paragraphs_of
from service.text.documents.runs import Run


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["one two"], ["one two"]),
        (["one", "  ", "two"], ["one[  ]two"]),
        (["one ", "\n", " two"], ["one", "[ \n ]two"]),
        (["one\ttwo"], ["one", "[\t]two"]),
        (["one", " ", "two "], ["one two "]),
        (["a\xa0b"], ["a\xa0b"]),
        (["\none"], ["[\n]one"]),
    ],
)
def test_white_space_is_kept(texts, expected):
    runs, place = list[Run](), 0
    for text in texts:
        runs.append(Run(place, place + len(text), text))
        place += len(text)
    found = ["".join(f"[{run.text}]" if run.is_whole else run.text for run in some) for some in paragraphs_of(runs)]
    assert [one for one in found if one] == expected


def test_a_line_break_that_wraps_a_line_is_a_mark():
    words = "The small red house of the old man stands there by itself, and\n" * 4
    (found,) = paragraphs_of([Run(0, len(words) - 1, words[:-1])])
    assert [run.text for run in found if run.is_whole] == ["\n"] * 3
