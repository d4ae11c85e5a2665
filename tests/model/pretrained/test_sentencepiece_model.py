import pytest

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.sentencepiece_model import read_sentencepiece
from tests.model.tokenizers.spm import MODELS, pieces, processor, trained


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:-1], "ends in the midst of"),
        (lambda data: b"", "there must be one unknown piece"),
        (lambda data: data + b"\x07", "wire type 7"),
        (lambda data: data + b"\xff" * 12, "a number of more than ten bytes"),
        (lambda data: data + b"\x12\x02\x18\x03", "model_type must be unigram .* got 3"),
        (lambda data: data + b"\x12\x03\xc0\x01\x01", "blanks must be marked before words"),
        (lambda data: data + b"\x2a\x03\x12\x01a", "denormalizer_spec"),
        (lambda data: data + b"\x0a\x02\x08\x01", "field 1 must be bytes, got int"),
        (lambda data: data + b"\x0a\x02\x1a\x00", "field 3 must be int, got bytes"),
        (lambda data: data + b"\x10\x01", "a message must have a length, got a number"),
        (lambda data: data + b"\x0a\x05\x0a\x01\xff\x18\x01", "utf-8"),
    ],
)
def test_a_damaged_model_is_refused(damage, problem, tmp_path):
    file = tmp_path / "tokenizer.model"
    file.write_bytes(damage(trained(**MODELS["bpe"])))
    with pytest.raises(
        PretrainedError, match=f"tokenizer.model: is not a SentencePiece model that is covered: .*{problem}"
    ):
        convert_tokenizer(tmp_path)


def test_a_model_is_read_field_by_field(tmp_path):
    file = tmp_path / "model"
    file.write_bytes(trained(**MODELS["bpe-bytes"]))
    model = read_sentencepiece(file)
    own = processor(file.read_bytes())
    assert [piece.text for piece in model.pieces] == pieces(file.read_bytes())
    assert [piece.score for piece in model.pieces] == [own.get_score(token) for token in range(len(own))]
    assert (model.has_byte_fallback, model.add_dummy_prefix, model.remove_extra_whitespaces) == (True, True, False)
    assert model.charsmap == b""
