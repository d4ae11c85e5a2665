"""What confidence is worth on a test set, on answers whose figures are known."""

import sys

import pytest

from cli.terminal import UsageError
from cli.training.confidence_report import by_confidence, check_curve, draw, figures, judged, quality
from glossa.client.types import Confidence, WordConfidence
from model.training.evaluate import chrf


def sure(sentence, *words):
    return Confidence(sentence, tuple(WordConfidence((0, 1), word, word < 0.5) for word in words), (), True)


def share_of_equal(texts, references):
    return sum(map(str.__eq__, texts, references)) / len(texts)


# Ten answers of two words; the two least certain ones have one wrong word each.
ANSWERS = judged(
    [("a x", sure(0.1, 0.9, 0.1)), ("a y", sure(0.2, 0.9, 0.2))]
    + [("a b", sure(0.5 + place / 20, 0.9, 0.9)) for place in range(8)],
    ["a b"] * 10,
)


def test_figures_are_those_by_hand():
    found = figures(ANSWERS, {"equal": share_of_equal})
    assert (found["words"], found["wrong words"]) == (20, 0.1)
    assert found["ECE of words"] == pytest.approx((0.1 + 0.2 + 18 * 0.1) / 20)
    assert found["AUC of words"] == 1.0
    assert (found["wrong words in the least certain tenth"], found["least certain tenth over average, words"]) == (
        1.0,
        10.0,
    )
    assert (found["wrong sentences"], found["wrong sentences in the least certain tenth"]) == (0.2, 1.0)
    assert found["least certain tenth over average, sentences"] == 5.0
    kept = [found[f"equal of the most certain {share}"] for share in ("100%", "90%", "80%")]
    assert kept == [0.8, round(8 / 9, 4), 1.0]


def test_certain_answers_come_first_and_at_least_one_is_kept():
    assert [answer.confidence.sentence for answer in by_confidence(ANSWERS)][-2:] == [0.2, 0.1]
    assert quality(by_confidence(ANSWERS), 0.0, share_of_equal) == 1.0


def test_a_picture_is_written_and_an_unknown_format_is_named(tmp_path):
    draw(ANSWERS, chrf, "chrF", tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text().count("<path") > 20
    draw(ANSWERS, chrf, "chrF", tmp_path / "curve.webp")
    assert (tmp_path / "curve.webp").read_bytes()[8:12] == b"WEBP"
    for name in ("curve.svg", "curve.webp", "new.PNG"):
        check_curve(tmp_path / name)
    with pytest.raises(UsageError, match=r"curve\.xyz: must end in one of .*\.svg.*, got '\.xyz'"):
        check_curve(tmp_path / "curve.xyz")
    with pytest.raises(UsageError, match=r"nowhere is not a directory; make it first"):
        check_curve(tmp_path / "nowhere" / "curve.svg")


def test_a_picture_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError, match="--curve needs matplotlib, which is not installed; fix: pip install"):
        check_curve(tmp_path / "curve.svg")


def test_answers_without_words_have_no_figures():
    with pytest.raises(UsageError, match="no answer has a word; fix: train"):
        figures(judged([("", sure(0.5))], ["a"]), {})
