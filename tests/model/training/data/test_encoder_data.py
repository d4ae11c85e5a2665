"""Masks by the 80/10/10 rule, exactly and statistically, and batches of texts."""

import random
from collections import Counter
from typing import Any

import pytest
import torch

from model.architecture_config import model_config
from model.config import TrainConfig
from model.tokenizer import MASK, MASK_ID, Tokenizer
from model.training.data.encoder_data import (
    MASKED,
    REPLACED,
    UNLABELLED,
    LabelBatches,
    MaskedBatches,
    TokenLabelBatches,
    encoder_batches,
    mask_tokens,
)
from model.training.data.examples import IGNORED, DataError, Examples
from model.training.objective.loss import label_sets

TEXTS = [" ".join(random.Random(number).choices("abcdefghijklmnop", k=2 + number % 11)) for number in range(200)]
LABELS = [("few", "many")[len(text.split()) > 6] for text in TEXTS]
TOKENIZER = Tokenizer.train(TEXTS, kind="words", vocab_size=40, with_mask=True)
TRAIN = TrainConfig(batch_tokens=64, steps=1, seed=3)


def config(**changes):
    shape = {"architecture": "encoder", "vocab_size": TOKENIZER.vocab_size, "max_source_len": 16, "mask_id": MASK_ID}
    return model_config({**shape, "head": "masked", **changes})


def masked_batches(train=TRAIN, texts=TEXTS):
    return MaskedBatches(Examples([("", text) for text in texts], "texts"), TOKENIZER, config(), train)


class Script:
    """Random numbers that a test has written."""

    def __init__(self, places, draws, choices=()):
        self.places, self.draws, self.choices = places, iter(draws), iter(choices)

    def sample(self, population, count):
        assert count == len(self.places)
        assert set(self.places) <= set(population)
        return self.places

    def random(self):
        return next(self.draws)

    def choice(self, others):
        chosen = next(self.choices)
        assert chosen in others
        return chosen


def test_chosen_tokens_are_hidden_replaced_or_kept():
    rng: Any = Script([5, 1, 3], [0.0, 0.85, 0.95], [33])
    masked = mask_tokens([1, 20, 21, 22, 23, 24, 2], range(1, 6), rng, share=0.6, mask_id=4, others=[30, 33])
    assert masked.ids == [1, 4, 21, 33, 23, 24, 2]
    assert masked.targets == {1: 20, 3: 22, 5: 24}


@pytest.mark.parametrize(("draw", "becomes"), [(0.799, 4), (0.8, 30), (0.899, 30), (0.9, 20), (0.999, 20)])
def test_the_borders_of_the_rule(draw, becomes):
    rng: Any = Script([0], [draw], [30])
    masked = mask_tokens([20], [0], rng, share=0.15, mask_id=4, others=[30])
    assert masked == ([becomes], {0: 20})


@pytest.mark.parametrize(("tokens", "chosen"), [(1, 1), (3, 1), (10, 2), (14, 2), (100, 15)])
def test_a_share_of_the_tokens_is_chosen_and_at_least_one(tokens, chosen):
    ids = list(range(10, 10 + tokens))
    masked = mask_tokens(ids, range(tokens), random.Random(1), share=0.15, mask_id=4, others=[5])
    assert len(masked.targets) == chosen


def test_shares_are_those_of_the_rule():
    """Of 40,000 chosen tokens, within four standard deviations; every place is as likely as any other."""
    rng, counts, places = random.Random(0), Counter[str](), Counter[int]()
    ids, others = list(range(100, 140)), list(range(200, 300))
    replacements = Counter[int]()
    for _ in range(40_000 // 6):
        masked = mask_tokens(ids, range(40), rng, share=0.15, mask_id=4, others=others)
        for place, token in masked.targets.items():
            now = masked.ids[place]
            counts["mask" if now == 4 else "same" if now == token else "other"] += 1
            places[place] += 1
            replacements[now] += now in others
        assert [now for place, now in enumerate(masked.ids) if place not in masked.targets] == [
            token for place, token in enumerate(ids) if place not in masked.targets
        ]
    total = sum(counts.values())
    for name, share in (("mask", MASKED), ("other", REPLACED), ("same", 1 - MASKED - REPLACED)):
        deviation = (share * (1 - share) / total) ** 0.5
        assert abs(counts[name] / total - share) < 4 * deviation, (name, counts)
    expected = total / 40
    assert all(abs(count - expected) < 5 * expected**0.5 for count in places.values())
    assert len(replacements.keys() & set(others)) == len(others)


def test_only_ordinary_tokens_are_chosen_and_put_in_their_place():
    batches = masked_batches()
    for keys in batches.plan(0):
        batch = batches.load(keys)
        for source, target, length in zip(batch.source_BS, batch.target_BT, batch.lengths_B.tolist(), strict=True):
            assert (int(source[0]), int(source[length - 1])) == (1, 2)
            is_masked = target != IGNORED
            assert is_masked.any()
            assert not is_masked[0]
            assert not is_masked[length - 1 :].any()
            assert (target[is_masked] > MASK_ID).all()
            assert not set(source[1 : length - 1].tolist()) & {0, 1, 2, 3}
        assert batch.tokens == int((batch.target_BT != IGNORED).sum())


def test_every_text_once_an_epoch_within_the_budget_and_masks_anew():
    batches = masked_batches()
    first, again, second = batches.plan(0), batches.plan(0), batches.plan(1)
    assert first == again != second
    for plan in (first, second):
        assert sorted(key % 200 for keys in plan for key in keys) == list(range(200))
        assert all(batches.load(keys).source_BS.numel() <= TRAIN.batch_tokens for keys in plan)
    assert sum(batches.load(keys).tokens for keys in first) == batches.tokens

    def hidden(epoch, place):
        return batches.load([epoch * 200 + place]).target_BT.tolist()

    differ = sum(hidden(0, place) != hidden(1, place) for place in range(200))
    assert differ > 100
    assert [hidden(1, place) for place in range(20)] == [hidden(1, place) for place in range(20)]


def test_other_seeds_mask_otherwise():
    other = masked_batches(TRAIN.replace(seed=4))
    batches = masked_batches()
    assert any(not torch.equal(batches.load([key]).target_BT, other.load([key]).target_BT) for key in range(20))


def test_labels_stand_beside_their_texts():
    model = config(head="classify", labels=("few", "many"))
    examples = Examples(list(zip(TEXTS, LABELS, strict=True)), "texts")
    batches = encoder_batches(examples, TOKENIZER, model, TRAIN)
    assert isinstance(batches, LabelBatches)
    assert batches.tokens == 200
    for keys in batches.plan(2):
        batch = batches.load(keys)
        assert batch.tokens == len(keys)
        for key, source, length, label in zip(
            keys, batch.source_BS, batch.lengths_B, batch.target_BT[:, 0], strict=True
        ):
            text = TEXTS[key % 200]
            assert source[: int(length)].tolist() == [1, *TOKENIZER.encode(text), 2]
            assert model.labels[int(label)] == LABELS[key % 200]


def test_a_text_may_have_none_of_several_labels():
    model = config(head="classify", labels=("few", "many"), multi_label=True)
    batches = LabelBatches(Examples([("a b", "-"), ("a", "many")], "texts"), TOKENIZER, model, TRAIN)
    targets = {key: batches.load([key]).target_BT.item() for key in (0, 1)}
    assert targets == {0: UNLABELLED, 1: 1}
    assert label_sets(torch.tensor([UNLABELLED, 1]), 2).tolist() == [[False, False], [False, True]]
    with pytest.raises(DataError, match="label '-' is none of the model's"):
        LabelBatches(Examples([("a b", "-")], "texts"), TOKENIZER, model.replace(multi_label=False), TRAIN)


def test_a_label_that_training_has_not_seen_is_named():
    model = config(head="classify", labels=("few", "many"))
    with pytest.raises(DataError, match="label 'none' is none of the model's: few, many"):
        LabelBatches(Examples([("a b", "none")], "texts"), TOKENIZER, model, TRAIN)


def test_texts_that_are_too_long_are_left_out_and_counted():
    batches = masked_batches(texts=[*TEXTS, " ".join("a" * 20)])
    assert batches.dropped == 1
    with pytest.raises(DataError, match=r"^texts: no text fits max_source_len 16"):
        masked_batches(texts=[" ".join("a" * 20)])


def test_the_mask_is_a_special_token_that_only_those_who_ask_for_it_read():
    reading = TOKENIZER.matching_special(MASK_ID)
    assert TOKENIZER.special_text(MASK_ID) == MASK
    assert reading.encode(f"a {MASK} b") == [*TOKENIZER.encode("a"), MASK_ID, *TOKENIZER.encode("b")]
    assert MASK_ID not in TOKENIZER.encode(f"a {MASK} b")
    assert reading.encode("a <eos> b") == TOKENIZER.encode("a <eos> b")
    assert TOKENIZER.pieces[MASK_ID] == b""
    assert TOKENIZER.decode([5, MASK_ID, 6]) == TOKENIZER.decode([5, 6])


def test_the_same_of_bytes():
    tokenizer = Tokenizer.train(TEXTS, kind="bpe", vocab_size=300, with_mask=True)
    reading = tokenizer.matching_special(MASK_ID)
    assert reading.encode(f"a b{MASK} c") == [*tokenizer.encode("a b"), MASK_ID, *tokenizer.encode(" c")]
    assert MASK_ID not in tokenizer.encode(f"a b{MASK} c")
    assert tokenizer.pieces[MASK_ID] == b""


def tagging(pairs, labels=("B-x", "I-x", "O"), tokenizer=TOKENIZER):
    model = config(head="tokens", labels=labels, mask_id=None, vocab_size=tokenizer.vocab_size)
    return encoder_batches(Examples(pairs, "spans"), tokenizer, model, TRAIN)


def test_words_have_their_label_at_their_first_token():
    batches = tagging([("a b c d", "2:5:x"), ("e f", "-")])
    assert isinstance(batches, TokenLabelBatches)
    batch = batches.load([0, 1])
    assert batch.target_BT.tolist() == [
        [IGNORED, 2, 0, 1, 2, IGNORED],
        [IGNORED, 2, 2, IGNORED, IGNORED, IGNORED],
    ]
    assert (batch.tokens, batches.tokens) == (6, 6)
    assert batch.source_BS.shape == batch.target_BT.shape


def test_later_tokens_of_a_word_have_no_label():
    tokenizer = Tokenizer.train(["abc"], kind="bpe", vocab_size=270)
    batch = tagging([("abc de", "0:3:x")], tokenizer=tokenizer).load([0])
    assert [label for label in batch.target_BT[0].tolist() if label != IGNORED] == [0, 2]
    assert batch.target_BT[0, 1] == 0
    assert batch.source_BS.shape[1] > 4


def test_unusable_spans_are_refused_with_the_number_of_the_example():
    with pytest.raises(DataError, match="spans: example 2: spans must have 0 <= start < end <= 3"):
        tagging([("a b", "-"), ("a b", "2:9:x")])
    with pytest.raises(DataError, match="label 'B-y' is none of the model's: B-x, I-x, O"):
        tagging([("a b", "0:1:y")])
