"""Training data with languages: special tokens and losses are those of `transformers`, and what does not fit is refused
before anything is written."""

import pytest
import torch

from model.checkpoint import load_checkpoint
from model.config import LanguagePair
from model.training.data import IGNORED, Examples, PairBatches
from model.training.loss import batch_loss
from tests.model.training.test_start import TUNED

pytest.importorskip("transformers")
from tests.pretrained_languages import KINDS, imported, read

PAIRS = [("ka lo mi", "ster ver"), ("tu ra", "ne tion gen heit"), ("schön élan ção", "łód čes ñan øre"), ("lo", "ka")]


@pytest.fixture(scope="module", params=KINDS)
def known(request, tmp_path_factory):
    """The kind of a model, its checkpoint, and the directory of `transformers`."""
    return request.param, *imported(request.param, tmp_path_factory.mktemp(request.param))


def batch_of(loaded, examples):
    config = TUNED.replace(batch_tokens=4096)
    batches = PairBatches(examples, loaded.tokenizer, loaded.config, config)
    return batches, batches.load(range(len(examples.pairs)))


def rows(tensor, lengths):
    return [row[:length].tolist() for row, length in zip(tensor, lengths, strict=True)]


@torch.no_grad()
def test_tokens_and_loss_are_those_of_transformers(known):
    kind, checkpoint, directory = known
    loaded = load_checkpoint(checkpoint)
    for source, target in KINDS[kind][2]:
        theirs, tokenizer = read(kind, directory, source, target)
        mark = f">>{target}<< " if kind == "marian" else ""
        sources, labels = ([tokenizer(mark + text).input_ids for text, _ in PAIRS], [])
        labels = [tokenizer(text_target=text).input_ids for _, text in PAIRS]
        examples = Examples(PAIRS, "pairs", languages=[LanguagePair(source, target)] * len(PAIRS))
        batches, batch = batch_of(loaded, examples)
        assert rows(batch.source_BS, batch.lengths_B) == sources
        wanted = [[token for token in row.tolist() if token != IGNORED] for row in batch.target_BT]
        assert wanted == labels
        assert batch.tokens == batches.tokens == sum(map(len, labels))
        mask = (torch.arange(batch.source_BS.shape[1]) < batch.lengths_B[:, None]).long()
        expected = theirs(input_ids=batch.source_BS, attention_mask=mask, labels=batch.target_BT)
        loss = batch_loss(loaded.model, batch).plain / batch.tokens
        torch.testing.assert_close(loss, expected.loss, rtol=2e-6, atol=0)


def examples_of(kind, *, count=60, numbers=(0,)):
    """Copies of words in the first pairs of languages of a model, one after the other."""
    words = [f"{first} {second}" for first in ("ka", "lo", "mi", "ne", "tu") for second in ("ra", "ster", "ver", "gen")]
    pairs = [(f"{text} {words[number % 7]}", text) for number, text in enumerate(words * (count // len(words)))]
    chosen = [LanguagePair(*KINDS[kind][2][number]) for number in numbers]
    return Examples(pairs, "words", languages=[chosen[place % len(chosen)] for place in range(len(pairs))])
