from itertools import chain

import pytest

from model.architecture_config import EncoderDecoderConfig
from model.config import TrainConfig
from model.tokenizer import Tokenizer
from model.training.data.bpe_dropout import BPEDropout
from model.training.data.embedded import embedded_examples
from model.training.data.examples import IGNORED, Examples, batches_of
from model.training.data.varied_batches import varied_batches
from tests.tiny import as_decoder

PAIRS = embedded_examples("pairs", 300)
MODEL = EncoderDecoderConfig(d_model=8, num_heads=2, max_source_len=64, max_target_len=64)
TRAIN = TrainConfig(batch_tokens=256, steps=1, bpe_dropout=0.2)
EPOCHS = range(3)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for pair in PAIRS.pairs for text in pair]
    return Tokenizer.train(texts, kind="bpe", vocab_size=500, with_separator=True)


@pytest.fixture(scope="module")
def dropout(tokenizer):
    return BPEDropout(tokenizer, TRAIN.bpe_dropout, seed=TRAIN.seed)


@pytest.fixture
def varied(dropout, tokenizer):
    def make(model=MODEL, examples=PAIRS, train=TRAIN):
        return varied_batches(dropout, examples, tokenizer, model, train)

    return make


def rows(batch):
    """The sources and targets of a batch without padding."""
    targets = [row[row != IGNORED].tolist() for row in batch.target_BT]
    return [(row[:size].tolist(), target) for row, size, target in zip(batch[0], batch.lengths_B, targets, strict=True)]


def test_every_epoch_has_every_example_in_another_segmentation(varied, tokenizer):
    batches, ordinary = varied(), batches_of(PAIRS, tokenizer, MODEL, TRAIN)
    assert (batches.tokens, batches.dropped) == (ordinary.tokens, 0)
    seen = []
    for epoch in EPOCHS:
        loaded = [batches.load(keys) for keys in batches.plan(epoch)]
        for batch in loaded:
            assert batch.target_BT.numel() <= TRAIN.batch_tokens
            assert batch.tokens == int((batch.target_BT != IGNORED).sum())
        pairs = [*chain.from_iterable(map(rows, loaded))]
        texts = [(tokenizer.decode(source), tokenizer.decode(target)) for source, target in pairs]
        assert sorted(texts) == sorted(PAIRS.pairs)
        assert sum(len(target) for _, target in pairs) > 1.05 * ordinary.tokens
        seen.append([sorted({str(pair[side]) for pair in pairs}) for side in (0, 1)])
    for side in (0, 1):
        assert len({*seen[0][side]} & {*seen[1][side]}) < 60
    assert varied(train=TRAIN).plan(2) == batches.plan(2)


def test_batches_of_an_earlier_epoch_stay_the_same(varied, tokenizer):
    """The batches of a step may be of two epochs."""
    text = Examples([("", " ".join(target for _, target in PAIRS.pairs))], "stream")
    stream = varied(as_decoder(MODEL), text, TRAIN.replace(documents="stream"))
    for batches in (varied(), stream):
        keys = batches.plan(0)[-1]
        before = rows(batches.load(keys))
        for epoch in (1, 2):
            later = batches.plan(epoch)[0]
            assert rows(batches.load(keys)) == before
            assert rows(batches.load(later)) != before


def test_an_example_that_gets_too_long_keeps_its_segmentation(dropout, tokenizer):
    lengths = [[len(tokenizer.encode(text)) + 1 for text in pair] for pair in PAIRS.pairs]
    model = MODEL.replace(max_source_len=max(s for s, _ in lengths), max_target_len=max(t for _, t in lengths))
    batches = varied_batches(dropout, PAIRS, tokenizer, model, TRAIN)
    assert batches.dropped == 0
    plain = batches_of(PAIRS, tokenizer, model, TRAIN)
    kept = 0
    for epoch in EPOCHS:
        keys = sorted(chain.from_iterable(batches.plan(epoch)))
        for number, (source, target) in enumerate(chain.from_iterable(rows(batches.load([key])) for key in keys)):
            assert len(source) <= model.max_source_len
            assert len(target) <= model.max_target_len
            kept += [(source, target)] == rows(plain.load([number]))
    free = varied_batches(dropout, PAIRS, tokenizer, MODEL, TRAIN)
    keys = sorted(chain.from_iterable(free.plan(0)))
    by_chance = sum(rows(free.load([key])) == rows(plain.load([number])) for number, key in enumerate(keys))
    assert kept > 3 * by_chance + 10


def test_sentences_with_those_before_them(varied, tokenizer):
    model = MODEL.replace(context_sentences=1, separator_id=tokenizer.special["<sep>"])
    batches = varied(model, Examples(PAIRS.pairs[:100], "documents", [2] * 50))
    pieces = {text for pair in PAIRS.pairs[:100] for text in pair}
    joined = 0
    for keys in batches.plan(1):
        for source, target in rows(batches.load(keys)):
            for ids in (source[:-1], target[:-1]):
                places = [place for place, token in enumerate(ids) if token == model.separator_id]
                parts = [ids[: places[0]], ids[places[0] + 1 :]] if places else [ids]
                joined += len(parts) - 1
                assert {tokenizer.decode(part) for part in parts} <= pieces
    assert joined > 20


@pytest.mark.parametrize("documents", ["lines", "stream"])
def test_a_language_model_reads_the_same_text_in_other_tokens(documents, varied, tokenizer):
    text = " ".join(target for _, target in PAIRS.pairs)
    texts = [("", text)] if documents == "stream" else [("", target) for _, target in PAIRS.pairs]
    batches = varied(as_decoder(MODEL), Examples(texts, "texts"), TRAIN.replace(documents=documents))
    for epoch in (0, 1):
        keys = sorted(chain.from_iterable(batches.plan(epoch)))
        targets = [target for key in keys for _, target in rows(batches.load([key]))]
        if documents == "lines":
            assert [tokenizer.decode(target) for target in targets] == [target for _, target in texts]
        else:
            read = tokenizer.decode([*chain.from_iterable(targets)]).strip("\ufffd")
            assert read in text
            assert len(read) > len(text) - 2 * 64 * 8


class Shortening(BPEDropout):
    """A segmentation with fewer tokens than the ordinary one: skipped merges may lead to longer tokens."""

    def ids(self, words, *key):
        return super().ids(words, *key)[:3]


def test_a_stream_that_gets_too_short_keeps_its_segmentation(tokenizer):
    text, train = PAIRS.pairs[0][1], TRAIN.replace(documents="stream")
    model = as_decoder(MODEL, max_target_len=len(tokenizer.encode(text)))
    dropout = Shortening(tokenizer, 0.1, seed=1)
    batches = varied_batches(dropout, Examples([("", text)], "stream"), tokenizer, model, train)
    (keys,) = batches.plan(3)
    ((_, target),) = rows(batches.load(keys))
    assert target == tokenizer.encode(text)
