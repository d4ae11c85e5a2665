"""The recipes' page names presets that exist, and its example is an article of the embedded corpus."""

import re
from pathlib import Path

from model.corpus.articles import MARK, article_ends, articles
from model.presets import PRESETS

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_presets_of_the_page_exist():
    named = set(re.findall(r"^\| `([\w-]+)`", PAGE, re.MULTILINE))
    assert {name for name in PRESETS if name.startswith("articles")} <= named
    assert named <= set(PRESETS)


def test_example_is_an_article_as_models_read_it():
    ((_, text),), ((end, _),) = articles(1, 1, "train"), article_ends(1, 1, "train")
    assert f'"{text.partition(MARK)[0]}{MARK}"' in PAGE
    assert f'"{end}"' in PAGE
