"""Scores of summaries, against the slow decoding of `model/reference` and texts whose score is known."""

import pytest
import torch

from lectures.claims.documents import article_of, load_of_experts, mean_rouge, summaries, target_nats
from model.architectures import build
from model.checkpoints.checkpoint import Checkpoint
from model.corpus.articles import MARK, SUMMARY_WORDS
from model.presets import PRESETS
from model.reference.greedy import greedy, score
from model.tokenizer import Tokenizer
from model.training.data.embedded import embedded_examples


def untrained(name):
    """The model of a preset with fresh weights, and three articles."""
    preset = PRESETS[name]
    examples = embedded_examples(preset.embedded, 3)
    texts = [text for pair in examples.pairs for text in pair if text]
    tokenizer = Tokenizer.train(texts, kind="words", vocab_size=preset.train.vocab_size)
    torch.manual_seed(1)
    config = preset.model.replace(vocab_size=tokenizer.vocab_size)
    return Checkpoint(build(config).eval(), config, tokenizer, {}, {}), examples


def asked(checkpoint, source, text):
    """Prompt and source of the model for one article."""
    template, tokenizer = checkpoint.model.config.template, checkpoint.tokenizer
    if source:
        return template.wrap_prompt(), template.wrap_source(tokenizer.encode(source))
    return template.wrap_prompt(tokenizer.encode(article_of(text))), ()


@pytest.mark.parametrize("name", ["articles-encoder-decoder", "articles-experts"])
def test_nats_are_those_of_the_words_of_summaries(name):
    checkpoint, examples = untrained(name)
    expected = []
    for source, text in examples.pairs:
        prompt, read = asked(checkpoint, source, text)
        words = checkpoint.tokenizer.encode(text)[-SUMMARY_WORDS:]
        expected.append([-nats for nats in score(checkpoint.model, prompt, [*words, 2], source=read)])
    found_NT = target_nats(checkpoint, examples)
    assert found_NT.shape == (3, SUMMARY_WORDS + 1)
    torch.testing.assert_close(found_NT.sort(0).values, torch.tensor(expected).sort(0).values)  # batches have any order


@pytest.mark.parametrize("name", ["articles-recurrent", "articles-compressed"])
def test_summaries_are_greedy_answers(name):
    checkpoint, examples = untrained(name)
    for (source, text), summary in zip(examples.pairs, summaries(checkpoint, examples), strict=True):
        prompt, read = asked(checkpoint, source, text)
        answer = greedy(checkpoint.model, prompt, source=read, max_tokens=SUMMARY_WORDS + 1)
        assert summary == checkpoint.tokenizer.decode(answer)


def test_loads_are_shares_of_the_tokens():
    checkpoint, examples = untrained("articles-experts")
    loads = load_of_experts(checkpoint, examples)
    assert [len(shares) for shares in loads] == [8] * 4
    assert [sum(shares) for shares in loads] == pytest.approx([1.0] * 4)
    assert len({share for shares in loads for share in shares}) > 8


@pytest.mark.parametrize("kind", ["article-ends", "articles"])
def test_rouge_is_the_mean_of_articles(kind):
    examples = embedded_examples(kind, 4)
    right = [text.rpartition(f"{MARK} ")[2] for _, text in examples.pairs]
    assert mean_rouge(right, examples) == pytest.approx(100)
    towns = [" ".join(text.split()[::3]) for text in right]  # a third of the words: precision 1, recall 1/3
    assert mean_rouge(towns, examples) == pytest.approx(50)
    assert mean_rouge([right[0], "", "", ""], examples) == pytest.approx(25)
