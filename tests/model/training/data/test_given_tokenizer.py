import pytest

from model.pretrained.convert_tokenizer import read_tokenizer
from model.tokenizer import Tokenizer, TokenizerError
from model.training.data.given_tokenizer import special_ids
from tests.model.tokenizers.spm import trained
from tests.tiny import TEXTS, tiny_tokenizer

WORDS = {
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
}


def test_our_own_names_are_known():
    assert special_ids(tiny_tokenizer()) == {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    assert special_ids(tiny_tokenizer(with_mask=True), needs_mask=True)["mask_id"] == 4


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        (("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), {"pad_id": 0, "bos_id": 2, "eos_id": 3, "unk_id": 1}),
        (("<pad>", "</s>", "<unk>"), {"pad_id": 0, "bos_id": 0, "eos_id": 1, "unk_id": 2}),
        (("<|endoftext|>", "<|pad|>"), {"pad_id": 1, "bos_id": 1, "eos_id": 0, "unk_id": 1}),
    ],
    ids=["bert", "t5", "bytes"],
)
def test_other_names_are_known_and_missing_ones_replaced(special, expected):
    assert special_ids(tokenizer_with(special)) == expected


def tokenizer_with(special):
    words = sorted({word for text in TEXTS for word in text.split()})
    added = [
        {"id": token, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for token, text in enumerate(special)
    ]
    vocabulary = {text: token for token, text in enumerate((*special, *words))}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": special[-1]}
    return Tokenizer({"added_tokens": added, "model": model, **WORDS})


def test_what_is_missing_is_named():
    with pytest.raises(
        TokenizerError, match="has no pad token; its special tokens are </s>, <unk>; add one named <pad>"
    ):
        special_ids(tokenizer_with(("</s>", "<unk>")))
    with pytest.raises(TokenizerError, match="has no eos token"):
        special_ids(tokenizer_with(("<pad>", "<unk>")))
    with pytest.raises(TokenizerError, match="has no mask token"):
        special_ids(tiny_tokenizer(), needs_mask=True)


def test_a_sentencepiece_model_is_read_with_its_own_ids(tmp_path):
    file = tmp_path / "own.model"
    file.write_bytes(trained(model_type="unigram", vocab_size=700, pad_id=3))
    tokenizer = read_tokenizer(file)
    assert tokenizer.vocab_size == 700
    assert special_ids(tokenizer) == {"pad_id": 3, "bos_id": 1, "eos_id": 2, "unk_id": 0}
    assert tokenizer.decode(tokenizer.encode("the small house")) == "the small house"
    other = tmp_path / "own.json"
    other.write_text(tokenizer.to_json())
    assert read_tokenizer(other).encode("the small house") == tokenizer.encode("the small house")
    file.write_bytes(b"no model")
    with pytest.raises(TokenizerError, match=r"own\.model: not a SentencePiece model"):
        read_tokenizer(file)
