"""`make hardness` in its smoke form: every promise is measured. Too short, and often too disturbed, for its figures."""

import subprocess
import sys

import pytest

from bench.hardness import BEGIN, END, Promise, promises, rewrite, section
from tests.packages import ROOT


def verdict(met):
    return {"measure": "goodput", "figure": 0.9, "bar": 0.97, "unit": "x", "met": met, "is_limit": False}


def test_figures_and_what_could_not_be_measured_are_shown():
    text = section(
        [
            (
                Promise("all is well", "", ""),
                {"command": "well --bundle /a/b", "verdicts": [verdict(True), verdict(False)]},
            ),
            (Promise("none is lost", "", ""), {"command": "lost", "problem": "status 1: no port", "verdicts": []}),
        ]
    )
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    assert "**All is well** (`python -m bench well --bundle b`)" in text
    assert text.count("| goodput |") == 2
    assert "| **no** |" in text
    assert "Not measured: status 1: no port" in text


def test_a_page_without_a_section_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no section between"):
        rewrite(page, "new")
    assert page.read_text(encoding="utf-8") == "nothing"


@pytest.mark.slow
def test_every_promise_can_be_measured(tiny_translation_bundle, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench", "hardness", "--smoke", "--bundle", str(tiny_translation_bundle)]
    done = subprocess.run([*command, "--write", str(page)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Not measured" not in text
    for promise in promises(tiny_translation_bundle):
        assert promise.text[1:] in text
