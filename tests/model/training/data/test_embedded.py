"""Texts that come with the code: the same every time, and apart from unseen ones."""

import pytest

from model.presets import PRESETS
from model.tokenizer import Tokenizer
from model.training.data.embedded import EMBEDDED, embedded_examples, unseen_examples
from model.training.data.examples import batches_of


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("articles")])
def test_articles_fit_their_presets(name):
    preset = PRESETS[name]
    examples = embedded_examples(preset.embedded, 100)
    tokenizer = Tokenizer.train(
        [text for pair in examples.pairs for text in pair if text], kind="words", vocab_size=400
    )
    batches = batches_of(examples, tokenizer, preset.model.replace(vocab_size=tokenizer.vocab_size), preset.train)
    assert len(examples.pairs) == 100
    assert batches.dropped == 0
    assert max(map(len, batches.plan(0))) == 32


@pytest.mark.parametrize("kind", ["pairs", "scenes", "copy", "kinds", "articles"])
def test_embedded_examples_are_the_same_every_time(kind, monkeypatch):
    name, _, draw = EMBEDDED[kind]
    monkeypatch.setitem(EMBEDDED, kind, (name, 200, draw))
    examples = embedded_examples(kind)
    assert len(examples.pairs) == 200
    assert examples.digest == embedded_examples(kind).digest
    assert all(target for _, target in examples.pairs)
    unseen = unseen_examples(name, 50)
    assert unseen is not None
    assert len(unseen.pairs) == 50
    assert unseen_examples("another text", 50) is None


def test_embedded_documents_have_the_sizes_of_their_grammar():
    examples, unseen = embedded_examples("references"), unseen_examples("embedded documents with pronouns", 50)
    assert unseen is not None
    for found in (examples, unseen):
        assert set(found.sizes) == {3}
        assert sum(found.sizes) == len(found.pairs)
    assert len(unseen.pairs) == 51
    assert {source for source, _ in examples.pairs[::3]}.isdisjoint(source for source, _ in unseen.pairs[::3])
