"""The section of BENCHMARKS.md that `make bench` rewrites, and the verdicts on its figures."""

import pytest

from bench.measure import Spread, Verdict, interleaved
from bench.speed.speed import BEGIN, END, rewrite, section

RESULTS = {
    "date": "2026-11-21",
    "seconds": 600.0,
    "machine": {"model": "Some CPU", "family": "Maker 1/2", "processors": 2, "flags": ["avx2"]},
    "versions": {"python": "3.11"},
    "parts": {
        "alone": {
            "title": "Single stream",
            "seconds": 12.0,
            "command": "python -m bench.x",
            "figures": {"unit": "sentences/s", "ours": {"median": 2.0, "low": 1.0, "high": 3.0, "count": 5}},
            "verdicts": [
                {
                    "measure": "single stream, int8",
                    "figure": 1.9,
                    "bar": 2.4,
                    "unit": "×",
                    "aim": "the limit",
                    "is_limit": False,
                    "note": "theirs, 2 threads",
                    "met": False,
                }
            ],
        },
        "beam": {"title": "Beams", "skipped": "ctranslate2 is not installed"},
    },
}


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "BENCHMARKS.md"
    path.write_text("# Measurements\n\nbefore\n")
    return path


def test_section_is_appended_and_then_rewritten_in_place(page):
    rewrite(page, f"{BEGIN}\nfirst\n{END}")
    page.write_text(page.read_text() + "\nafter\n")
    rewrite(page, f"{BEGIN}\nsecond\n{END}")
    assert page.read_text() == f"# Measurements\n\nbefore\n\n## Speed\n\n{BEGIN}\nsecond\n{END}\n\nafter\n"


def test_page_with_one_marker_is_rejected_unchanged(page):
    page.write_text(f"{BEGIN}\nold\n")
    with pytest.raises(SystemExit, match="must have both or none"):
        rewrite(page, "new")
    assert page.read_text() == f"{BEGIN}\nold\n"


def test_section_lists_bars_figures_and_skipped_parts():
    text = section(RESULTS, details=True)
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    assert "| single stream, int8 | ≥ 2.4 × | 1.9 × | **no** | the limit | theirs, 2 threads |" in text
    assert "| ours | 2 | 1 | 3 |" in text
    assert "**Beams**: not measured: ctranslate2 is not installed" in text
    assert "Some CPU" in text
    assert "2026-11-21" in text
    page = section(RESULTS, details=False)
    assert "| ours | 2 | 1 | 3 |" not in page
    assert "| single stream, int8 | ≥ 2.4 × | 1.9 × | **no** |\n" in page
    assert "**Beams**: not measured: ctranslate2 is not installed" in page


def test_verdict_respects_the_direction_of_its_bar():
    assert Verdict("ratio", 1.5, 1.5).met
    assert not Verdict("ratio", 1.49, 1.5).met
    assert Verdict("share", 0.08, 0.08, is_limit=True).met
    assert not Verdict("share", 0.081, 0.08, is_limit=True).met


def test_jobs_are_interleaved_and_the_warm_up_round_is_discarded():
    order: list[str] = []

    def job(name):
        order.append(name)
        return float(len(order))

    found = interleaved({"a": lambda: job("a"), "b": lambda: job("b")}, repetitions=3)
    assert order == ["a", "b"] * 4
    assert found["a"] == Spread(median=5.0, low=3.0, high=7.0, count=3)
