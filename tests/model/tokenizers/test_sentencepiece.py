"""Against SentencePiece itself, and against every segmentation of a short text."""

import itertools
import random
import struct

import numpy as np
import pytest

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.sentencepiece_model import read_sentencepiece
from model.tokenizers.sentencepiece import SYMBOL_SCORE, UNKNOWN_PENALTY, Normalizer, Unigram
from tests.model.tokenizers.spm import MODELS, processor, trained
from tests.multilingual import lines


@pytest.mark.parametrize("charsmap", [b"\1", b"\xff\xff\xff\x00abc", struct.pack("<I", 3) + b"abcd"])
def test_a_damaged_charsmap_is_refused(charsmap, tmp_path):
    file = tmp_path / "tokenizer.model"
    field = b"\x12" + bytes([len(charsmap)]) + charsmap
    file.write_bytes(trained(**MODELS["bpe"]) + b"\x1a" + bytes([len(field)]) + field)
    with pytest.raises(PretrainedError, match="normalizer: charsmap"):
        convert_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["unigram", "unigram-bytes", "unigram-exact", "bpe"])
def test_texts_are_normalized_as_by_sentencepiece(name, tmp_path):
    file = tmp_path / "model"
    file.write_bytes(trained(**MODELS[name]))
    model, own = read_sentencepiece(file), processor(file.read_bytes())
    normalize = Normalizer(
        charsmap=model.charsmap,
        add_dummy_prefix=model.add_dummy_prefix,
        remove_extra_whitespaces=model.remove_extra_whitespaces,
        symbols=[piece.text for piece in model.pieces if piece.type == 4],
    )
    odd, rng = [*" \u3000\u00b4\u0301\u0323ae▁\t ½ﬁ…Å\u1e9b한\u1100\u1161ＡＢ\u00ad", "<user>"], random.Random(5)
    mixed = ["".join(rng.choices(odd, k=rng.randint(1, 9))) for _ in range(500)]
    for text in [*lines(200, 30), *mixed, "", "  ", "  ＡＢ e\u0302\u0301  ﬃ "]:
        assert normalize(text) == own.normalize(text) == normalize.traced(text)[0]


def test_each_normalized_character_has_its_span_in_the_text(tmp_path):
    normalize = Normalizer(charsmap=b"", add_dummy_prefix=True, remove_extra_whitespaces=True)
    normal, spans = normalize.traced("  ab  c ")
    assert normal == "▁ab▁c"
    assert spans == [(2, 2), (2, 3), (3, 4), (4, 5), (6, 7)]
    assert normalize.traced("   ") == ("", [])


SCORES = {"a": -1.5, "b": -2.0, "ab": -2.25, "ba": -3.0, "aba": -4.5, "bb": -3.5}
IDS = {text: place for place, text in enumerate([*SCORES, "[x]", "<unk>", *(f"byte {byte}" for byte in range(256))])}
UNKNOWN = IDS["<unk>"]


def best_score(text):
    """The largest sum of float32 scores over all segmentations."""
    unknown = min(SCORES.values()) - UNKNOWN_PENALTY
    scores = {**SCORES, "[x]": SYMBOL_SCORE}
    sums = []
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [len(text)]
        parts = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if all(part in scores or len(part) == 1 for part in parts):
            total = np.float32(0)
            for part in parts:
                total = np.float32(total + np.float32(scores.get(part, unknown)))
            sums.append(total)
    return max(sums)


def test_the_most_likely_pieces_are_those_of_a_search_of_all():
    unigram, rng = Unigram(SCORES, ["[x]"], IDS, unknown=UNKNOWN), random.Random(31)
    scores = {IDS[text]: score for text, score in {**SCORES, "[x]": SYMBOL_SCORE}.items()}
    for _ in range(60):
        text = "".join(rng.choices(["a", "b", "c", "[x]"], weights=[4, 4, 1, 1], k=rng.randint(1, 6)))[:9]
        cuts = unigram.cut(text)
        assert "".join(text[cut.start : cut.end] for cut in cuts) == text
        unknown = min(SCORES.values()) - UNKNOWN_PENALTY
        total = sum(scores.get(cut.token, unknown * (cut.end - cut.start)) for cut in cuts)
        assert total == pytest.approx(best_score(text), abs=1e-4)


def test_texts_of_known_words_are_segmented_as_those_of_a_search_through_the_whole_text():
    scores = {"▁": -1.0, "▁a": -1.1, "a": -1.1, "aa": -2.2, "aaa": -3.3, "b": -7.7, "ab": -8.8, "▁ba": -9.9}
    ids = {text: place for place, text in enumerate([*scores, "a▁"])}
    by_word = Unigram(scores, [], ids, unknown=UNKNOWN)
    whole = Unigram({**scores, "a▁": -99.0}, [], ids, unknown=UNKNOWN)  # a piece that no best segmentation has
    whole._unknown_score = by_word._unknown_score
    rng = random.Random(7)
    for length in (0, 1, 3, 9, 30, 300, 3000, 30_000):
        for _ in range(20 if length < 3000 else 2):
            text = "".join(rng.choices(["a", "b", "c", "▁"], weights=[8, 1, 1, 3], k=length))
            assert by_word.cut(text) == by_word.cut(text) == whole.cut(text)


def test_unknown_text_is_one_piece_or_its_bytes():
    assert Unigram(SCORES, [], IDS, unknown=UNKNOWN).cut("aéöb") == [
        (IDS["a"], 0, 1),
        (UNKNOWN, 1, 3),
        (IDS["b"], 3, 4),
    ]
    by_byte = [IDS[f"byte {byte}"] for byte in range(256)]
    cuts = Unigram(SCORES, [], IDS, unknown=UNKNOWN, by_byte=by_byte).cut("é")
    assert cuts == [(by_byte[0xC3], 0, 1), (by_byte[0xA9], 0, 1)]
