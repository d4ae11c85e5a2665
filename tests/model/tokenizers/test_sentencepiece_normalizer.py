import struct

import pytest

from model.tokenizer import TokenizerError
from model.tokenizers.convert import convert_tokenizer
from tests.model.tokenizers.spm import MODELS, trained


@pytest.mark.parametrize("charsmap", [b"\1", b"\xff\xff\xff\x00abc", struct.pack("<I", 3) + b"abcd"])
def test_a_damaged_charsmap_is_refused(charsmap, tmp_path):
    file = tmp_path / "tokenizer.model"
    field = b"\x12" + bytes([len(charsmap)]) + charsmap
    file.write_bytes(trained(**MODELS["bpe"]) + b"\x1a" + bytes([len(field)]) + field)
    with pytest.raises(TokenizerError, match="normalizer: charsmap"):
        convert_tokenizer(tmp_path)
