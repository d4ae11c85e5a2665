"""GGUF files that are whole, split, cut off, or something else."""

import struct

import gguf
import numpy as np
import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.gguf.file import is_gguf, read_gguf
from tests.decoders import make_decoder
from tests.gguf_files import characters, gguf_of, metadata_of, tensors_of, write_gguf

NESTED = struct.pack("<QQQ1sIIQIQ", 0, 1, 1, b"a", 9, 9, 1, 4, 0)  # one key, whose value is a list of one list


@pytest.fixture(scope="module")
def llama():
    return make_decoder("llama")


@pytest.fixture(scope="module")
def whole(llama, tmp_path_factory):
    return gguf_of(tmp_path_factory.mktemp("whole") / "model.gguf", llama)


@pytest.fixture
def parts(llama, tmp_path):
    metadata = {**metadata_of(llama), **characters(97)}
    write_gguf(tmp_path / "model.gguf", metadata, tensors_of(llama), split_max_tensors=8)
    return sorted(tmp_path.glob("model-*.gguf"))


def test_metadata_and_tensors_are_those_of_the_library(whole, llama):
    found, reader = read_gguf(whole), gguf.GGUFReader(whole)
    for name, field in reader.fields.items():
        expected = field.contents()
        assert found.fields.need(name) == (pytest.approx(expected) if isinstance(expected, float) else expected), name
    assert found.fields.need("llama.attention.layer_norm_rms_epsilon") == 1e-6
    assert found.tensors.keys() == tensors_of(llama).keys()
    for name, values in tensors_of(llama).items():
        np.testing.assert_array_equal(found.tensor(name), values)
    assert found.tensor_types == "F32 21"


def test_a_split_file_is_read_from_any_of_its_parts(parts, whole):
    assert [part.name for part in parts] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        found = read_gguf(part)
        assert found.parts == tuple(parts)
        assert found.tensors.keys() == read_gguf(whole).tensors.keys()
        assert found.fields.need("llama.block_count") == 2


def test_parts_that_are_missing_or_renamed_are_named(parts):
    renamed = parts[0].with_name("model.gguf")
    renamed.write_bytes(parts[0].read_bytes())
    with pytest.raises(PretrainedError, match=r"is one of 3 parts of a file, which must lie together, with names as"):
        read_gguf(renamed)
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(PretrainedError, match=r"must hold 21 tensors in all its parts, got 13"):
        read_gguf(parts[0])
    parts[1].unlink()
    with pytest.raises(PretrainedError, match=r"is one of 3 parts, of which 1 are missing: model-00002-of-00003.gguf"):
        read_gguf(parts[2])


def test_a_file_that_was_cut_off_is_refused_wherever(whole, tmp_path):
    stored, path = whole.read_bytes(), tmp_path / "cut.gguf"
    header = stored.index(b"blk.1.attn_output.weight")
    for size in (*range(4, header, 97), header + 10, len(stored) // 2, len(stored) - 100):
        path.write_bytes(stored[:size])
        with pytest.raises(PretrainedError, match=r"cut.gguf: is no whole GGUF file .*; if it was cut off .* again"):
            read_gguf(path)
    path.write_bytes(stored[:-100])
    with pytest.raises(PretrainedError, match=rf"output.weight ends at byte {len(stored)}, of {len(stored) - 100}; if"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", r"is no GGUF file: it must begin with b'GGUF', got b''"),
        (b"PK\x03\x04", r"is no GGUF file: it must begin with b'GGUF', got b'PK.x03.x04'"),
        (b"GGUF\x01\0\0\0" + bytes(99), r"is no whole GGUF file of version 2 or 3: .* version 1"),
        (b"GGUF\x03\0\0\0" + NESTED, r"an array of arrays at byte 37 is not covered"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 99, r"is no whole GGUF file of version 2 or 3"),
    ],
)
def test_other_files_are_refused(content, problem, tmp_path):
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(PretrainedError, match=problem):
        read_gguf(tmp_path / "model.gguf")


def test_a_big_endian_file_is_refused(llama, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, {**metadata_of(llama), **characters(97)}, tensors_of(llama), endian=gguf.GGUFEndian.BIG)
    with pytest.raises(PretrainedError, match=r"is big-endian; convert a copy in place with `gguf-convert-endian"):
        read_gguf(path)


def test_a_text_that_is_no_unicode_is_refused(llama, tmp_path):
    path = gguf_of(tmp_path / "model.gguf", llama, general__name="abcdef")
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"abc\xffef"))
    with pytest.raises(PretrainedError, match=r"model.gguf: general.name: cannot be read: 'utf-8' codec"):
        read_gguf(path)


def test_a_file_is_known_by_its_name_or_its_beginning(whole, tmp_path):
    (tmp_path / "blob").write_bytes(whole.read_bytes())
    (tmp_path / "folder.gguf").mkdir()
    assert [is_gguf(path) for path in (whole, tmp_path / "blob", tmp_path / "none.gguf", tmp_path / "none")] == [
        *(True, True, True, False)
    ]
    assert not is_gguf(tmp_path / "folder.gguf")
    with pytest.raises(PretrainedError, match=r"none.gguf: cannot be read: .*No such file"):
        read_gguf(tmp_path / "none.gguf")
