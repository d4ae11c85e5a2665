"""`make hardness` in its smoke form: every promise is measured. Too short, and often too disturbed, for its figures."""

import subprocess
import sys

import pytest

from bench.promises.hardness import BEGIN, END, Promise, measures, promises, rewrite, section
from model.tokenizer import Tokenizer
from model.training.data.embedded import embedded_examples
from tests.packages import ROOT
from tests.tiny import tiny_config, tiny_model


@pytest.fixture(scope="module")
def bundle(exported):
    """A translation model that knows the words of the embedded corpus, which the cases send."""
    texts = [text for pair in embedded_examples("pairs", 20_000).pairs for text in pair]
    tokenizer = Tokenizer.train(texts, kind="words", vocab_size=1200)
    return exported(tiny_model(tiny_config(vocab_size=tokenizer.vocab_size)), tokenizer, texts=tuple(texts[:8]))


def verdict(met):
    return {"measure": "goodput", "figure": 0.9, "bar": 0.97, "unit": "x", "met": met, "is_limit": False}


def test_figures_and_what_could_not_be_measured_are_shown():
    promised = [
        (
            Promise("all is well", "", ""),
            {"command": "well --bundle /a/b", "verdicts": [verdict(True), verdict(False)]},
        ),
        (Promise("all ends", "", ""), {"command": "ends", "verdicts": [verdict(True)]}),
        (Promise("none is lost", "", ""), {"command": "lost", "problem": "status 1: no port", "verdicts": []}),
    ]
    text = section(promised)
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    assert "| **All is well** (`python -m bench well --bundle b`) | 1 of 2 | goodput: 0.9 x (≥ 0.97 x) |" in text
    assert "Not measured: status 1: no port" in text
    assert "\n\nAll measures met: All ends (1).\n" in text
    assert measures(promised).splitlines() == [
        "promise\tmeasure\tbar\tmeasured\tmet",
        "All is well\tgoodput\t≥ 0.97 x\t0.9 x\tyes",
        "All is well\tgoodput\t≥ 0.97 x\t0.9 x\tno",
        "All ends\tgoodput\t≥ 0.97 x\t0.9 x\tyes",
    ]


def test_a_page_without_a_section_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no section between"):
        rewrite(page, "new", "figures")
    assert page.read_text(encoding="utf-8") == "nothing"
    assert not page.with_suffix(".tsv").exists()


@pytest.mark.slow
def test_every_promise_can_be_measured(bundle, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench", "hardness", "--smoke", "--bundle", str(bundle)]
    done = subprocess.run([*command, "--write", str(page)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Not measured" not in text
    for promise in promises(bundle):
        assert promise.text[1:] in text
        assert promise.text[1:] in page.with_suffix(".tsv").read_text(encoding="utf-8")
