"""Texts that come with the code, for presets that train without files: those of `model.corpus`, and a toy task."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from model.config import LanguagePair
from model.corpus import articles, corpus, entities, references
from model.presets import Embedded
from model.training.data.examples import DataError, Examples


def copy_examples(count: int, *, seed: int) -> Examples:
    """The toy task of copying 2 to 8 random letters: a smoke test of training in seconds, with a known answer. Texts of
    few letters recur: a twelfth of those of one seed are among 5,000 of another."""
    rng = random.Random(seed)
    texts = (" ".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(count))
    return Examples([(text, text) for text in texts], f"copy task, seed {seed}")


_Draw = Callable[[int, int, corpus.Split], Sequence[tuple[str, str]]]  # by seed, number and part
EMBEDDED: dict[str, tuple[str, int, _Draw]] = {  # the name of each text, and the number of its training examples
    "pairs": ("embedded scene grammar", 60_000, corpus.pairs),
    "scenes": ("embedded scenes", 40_000, lambda *drawn: [("", text) for text in corpus.scenes(*drawn)]),
    "copy": ("copy task, seed 1", 5_000, lambda seed, count, _: copy_examples(count, seed=seed).pairs),
    "animals": ("embedded scenes with and without animals", 20_000, entities.animals),
    "entities": ("embedded scenes with entities", 20_000, entities.entities),
    "kinds": ("embedded kinds of sentences", 20_000, corpus.kinds),
    "references": ("embedded documents with pronouns", 30_000, references.references),
    "article-ends": ("embedded ends of articles", 60_000, articles.article_ends),
    "article-halves": ("embedded halves of articles", 60_000, articles.article_halves),
    "articles": ("embedded articles", 60_000, articles.articles),
}
LANGUAGES: dict[str, LanguagePair] = dict.fromkeys(("pairs", "references"), LanguagePair("en", "de"))
_SIZES: dict[str, int] = {"embedded documents with pronouns": references.SENTENCES}  # of every document of a text


def embedded_examples(kind: Embedded, most: int | None = None) -> Examples:
    """The training text that comes with the code, for presets that train without files. most: of its examples."""
    if kind not in EMBEDDED:
        raise DataError("there is no embedded corpus without a name; give data")
    name, count, draw = EMBEDDED[kind]
    return _embedded(draw(1, min(count, most or count), "train"), name)


def unseen_examples(name: str, count: int) -> Examples | None:
    """Held-out text of the same kind as the embedded text of this name, or None if there is none of that name."""
    draw = next((draw for known, _, draw in EMBEDDED.values() if known == name), None)
    return None if draw is None else replace(_embedded(draw(2, count, "test"), name), name=f"{name}, unseen")


def _embedded(pairs: Sequence[tuple[str, str]], name: str) -> Examples:
    size = _SIZES.get(name, 0)
    return Examples(pairs, name, [size] * (len(pairs) // size) if size else ())
