"""Segmentations with skipped merges; the oracle is `tokenizers` with a dropout of its own."""

import hashlib
import json
import math
from collections import Counter

import pytest
from tokenizers import Tokenizer as Library

from model.config import ConfigError, TrainConfig
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.tokenizer import Tokenizer
from model.training.data.bpe_dropout import LEAST, LONGEST, MOST, BPEDropout, check_dropout, dropout_of
from tests.model.tokenizers.families import made
from tests.model.tokenizers.spm import MODELS, trained
from tests.multilingual import lines
from tests.tiny import tiny_config, tiny_encoder

TEXTS = lines(300, 5)
ALL = 1 << 64
SAMPLES = 6_000
MERGED = ("gpt2", "llama3", "llama2", "gemma")  # families whose words are merged


def bits(number):
    return int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:8])


@pytest.fixture(scope="module")
def own():
    """As `glossa train` makes it."""
    return Tokenizer.train(lines(400, 1), kind="bpe", vocab_size=900)


@pytest.fixture(params=["own", "sentencepiece", *MERGED])
def tokenizer(request, tmp_path, own):
    if request.param == "own":
        return own
    if request.param == "sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(trained(**MODELS["bpe-bytes"]))
        return convert_tokenizer(tmp_path)
    return Tokenizer(made(request.param, tmp_path))


def test_without_skips_texts_have_their_ordinary_ids(tokenizer):
    expected = tokenizer.encode_batch(TEXTS)
    for rate in (0.0, 1e-12):
        dropout = BPEDropout(tokenizer, rate, seed=1)
        assert [dropout.ids(words) for words in dropout.words(TEXTS)] == expected


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_every_segmentation_decodes_to_the_same_text(rate, tokenizer):
    dropout = BPEDropout(tokenizer, rate, seed=1)
    texts = TEXTS[:100]
    expected = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)]
    changed = 0
    for epoch in range(3):
        drawn = [dropout.ids(words, epoch, place) for place, words in enumerate(dropout.words(texts))]
        assert [tokenizer.decode(ids) for ids in drawn] == expected
        changed += sum(ids != plain for ids, plain in zip(drawn, tokenizer.encode_batch(texts), strict=True))
    assert changed > 150


def test_with_all_merges_skipped_every_token_is_a_byte(own):
    dropout = BPEDropout(own, 1.0, seed=1)
    for text, words in zip(TEXTS, dropout.words(TEXTS), strict=True):
        if all(len(word.symbols) <= LONGEST for word in words):
            assert [own.pieces[token] for token in dropout.ids(words)] == [bytes([byte]) for byte in text.encode()]


@pytest.mark.parametrize(
    "rate", [pytest.param(0.1, marks=pytest.mark.slow), 0.5, pytest.param(0.9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("word", [" mother", "tiontion", " schönschön", "aaaaaa"])
def test_segmentations_are_distributed_as_those_of_the_library(rate, word):
    """A chi-squared test of homogeneity. The library draws by itself: the bound is 6 deviations."""
    texts = [*lines(200, 1), *[" mother other the her moth schön tiontion aaaa aa aaa aaaaaa"] * 20]
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=900)
    values = json.loads(tokenizer.to_json())
    values["model"]["dropout"] = rate
    library = Library.from_str(json.dumps(values))
    dropout = BPEDropout(tokenizer, rate, seed=1)
    ((found,),) = dropout.words([word])
    ours = Counter(dropout.segmented(found, bits(number)) for number in range(SAMPLES))
    theirs = Counter(tuple(library.encode(word, add_special_tokens=False).ids) for _ in range(SAMPLES))
    rare = sum((ours + theirs)[ids] for ids in ours | theirs if (ours + theirs)[ids] < 10)
    common = [ids for ids in ours | theirs if (ours + theirs)[ids] >= 10]
    assert len(common) > 1
    statistic = sum((ours[ids] - theirs[ids]) ** 2 / (ours[ids] + theirs[ids]) for ids in common)
    freedom = len(common) - (rare == 0)
    assert statistic < freedom + 6 * math.sqrt(2 * freedom) + 6


def test_an_occurrence_is_plain_as_often_as_nothing_is_skipped_and_else_one_of_few_variants(own):
    dropout = BPEDropout(own, 0.1, seed=1)
    text = TEXTS[0]
    ((word, *_),) = dropout.words(["ternstern"])
    word.count = 1000
    decisions = math.log(word.limit / ALL) / math.log(0.9)
    assert decisions == pytest.approx(round(decisions))
    assert decisions >= len(word.symbols) - len(word.plain) > 0
    drawn = Counter(tuple(dropout.ids([word], text, number)) for number in range(4_000))
    skipped = [dropout.segmented(word, word.limit + number * (ALL - word.limit) // 500) for number in range(500)]
    unchanged = 4_000 * (word.limit / ALL + (1 - word.limit / ALL) * skipped.count(word.plain) / 500)
    assert drawn[word.plain] == pytest.approx(unchanged, rel=0.15), "some skips come to nothing"
    assert len(word.variants) == MOST
    assert set(drawn) == {word.plain, *word.variants}
    ((rare, *_),) = dropout.words(["newsternstern"])
    for number in range(100):
        dropout.ids([rare], text, number)
    assert len(rare.variants) == LEAST


def test_segmentations_do_not_depend_on_what_was_segmented_before(own):
    one, other = (BPEDropout(own, 0.3, seed=1) for _ in range(2))
    forwards, backwards = one.words(TEXTS), other.words(TEXTS[::-1])[::-1]
    keys = [(epoch, place) for epoch in (0, 1) for place in range(len(TEXTS))]
    ids = {key: one.ids(forwards[key[1]], *key) for key in keys}
    assert ids == {key: other.ids(backwards[key[1]], *key) for key in reversed(keys)}
    third = BPEDropout(own, 0.3, seed=2)
    assert ids != {key: third.ids(words, *key) for key, words in zip(keys, third.words(TEXTS) * 2, strict=True)}
    assert any(ids[0, place] != ids[1, place] for place in range(len(TEXTS)))


def test_a_word_of_very_many_symbols_keeps_its_segmentation(own):
    dropout = BPEDropout(own, 1.0, seed=1)
    for size, is_kept in ((LONGEST, False), (LONGEST + 1, True)):
        text = ("ster" * LONGEST)[:size]
        (words,) = dropout.words([text])
        assert (dropout.ids(words) == own.encode(text)) == is_kept


def test_blanks_cut_what_a_sentencepiece_model_segments_as_a_whole(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(trained(**MODELS["bpe-bytes"]))
    (words,) = BPEDropout(convert_tokenizer(tmp_path), 0.5, seed=1).words(["kalo mine  turakalo"])
    assert len(words) == 3


def changed(own, **fields):
    values = json.loads(own.to_json())
    values["model"] |= fields
    return values


def test_tokenizers_without_merges_are_refused(own, tmp_path):
    config = tiny_config()
    train = TrainConfig(steps=1, bpe_dropout=0.1)
    words = Tokenizer.train(["a b"], kind="words", vocab_size=20)
    with pytest.raises(ConfigError, match="bpe_dropout: needs a tokenizer of type BPE, got WordLevel; leave"):
        dropout_of(train, config, words)
    for family, kind in (("t5", "Unigram"), ("bert", "WordPiece")):
        with pytest.raises(ConfigError, match=f"bpe_dropout: needs a tokenizer of type BPE, got {kind}"):
            dropout_of(train, config, Tokenizer(made(family, tmp_path)))
    with pytest.raises(ConfigError, match="does not know a tokenizer with a end_of_word_suffix, got '</w>'"):
        dropout_of(train, config, Tokenizer(changed(own, end_of_word_suffix="</w>")))
    whole = json.loads(own.to_json())
    whole["pre_tokenizer"]["use_regex"] = False
    with pytest.raises(ConfigError, match="needs a tokenizer that cuts a text into words; this one merges across them"):
        dropout_of(train, config, Tokenizer(whole))


def test_models_that_generate_nothing_are_refused(own):
    train = TrainConfig(steps=1, bpe_dropout=0.1)
    with pytest.raises(ConfigError, match="bpe_dropout: is for models that generate text; leave it out"):
        dropout_of(train, tiny_encoder("masked").config, own)
    assert dropout_of(train.replace(bpe_dropout=0.0), tiny_encoder("masked").config, own) is None
    words = train.replace(tokenizer="words")
    with pytest.raises(ConfigError, match="bpe_dropout: needs tokenizer: bpe, got words; set that, or leave"):
        check_dropout(words, tiny_config(), trains_tokenizer=True)
    check_dropout(words, tiny_config(), trains_tokenizer=False)
    with pytest.raises(ConfigError, match=r"bpe_dropout: must be 0.0..1.0, got 1.5"):
        TrainConfig(steps=1, bpe_dropout=1.5)
