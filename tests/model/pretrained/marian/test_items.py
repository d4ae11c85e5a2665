"""Model files that are whole, cut off, of another version, or of a type that is not covered."""

import struct
from typing import Any

import numpy as np
import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.marian.items import read_items
from tests.marian_files import OPTIONS, TYPES, rounded, tensors_of, write_bin, write_npz


@pytest.fixture(scope="module")
def tensors():
    return {**tensors_of(), "Wemb_QuantMultA": np.array([[23.5]], np.float32)}


@pytest.fixture
def whole(tmp_path, tensors):
    return write_bin(tmp_path / "model.bin", OPTIONS, tensors)


def test_an_archive_and_a_plain_file_hold_the_same(tmp_path, tensors):
    archive = read_items(write_npz(tmp_path / "model.npz", OPTIONS, tensors))
    plain = read_items(write_bin(tmp_path / "model.bin", OPTIONS, tensors, integers=""))
    for found in (archive, plain):
        assert found.options == OPTIONS
        assert found.types == f"float32 {len(tensors)}"
        assert found.tensors.keys() == tensors.keys()
        for name, values in tensors.items():
            np.testing.assert_array_equal(found.tensors[name], values)


def test_integers_are_divided_by_their_multiplier_and_turned_back(whole, tensors):
    found = read_items(whole)
    for name, values in tensors.items():
        np.testing.assert_allclose(found.tensors[name], rounded(name, values), rtol=1e-6)
    assert found.types == "float32 47, intgemm8 30"  # matrices, the embedding, and the range of one input


def test_integers_of_two_bytes(tmp_path, tensors):
    found = read_items(write_bin(tmp_path / "model.bin", OPTIONS, tensors, integers="int16"))
    for name, values in tensors.items():
        np.testing.assert_allclose(found.tensors[name], values, atol=1 / 2048)


def test_numbers_of_half_precision(tmp_path, tensors):
    halves = {name: values.astype(np.float16) for name, values in tensors.items()}
    found = read_items(write_npz(tmp_path / "model.npz", OPTIONS, halves))
    assert {values.dtype for values in found.tensors.values()} == {np.dtype(np.float32)}


def test_a_file_that_was_cut_off_is_refused_wherever(whole, tmp_path):
    stored, path = whole.read_bytes(), tmp_path / "cut.bin"
    for size in (*range(0, 4000, 61), *range(4000, len(stored), 3001)):
        path.write_bytes(stored[:size])
        with pytest.raises(PretrainedError, match=r"cut.bin: (ends at byte|.* must have \d+ bytes).* fetch it again"):
            read_items(path)


def test_an_archive_that_was_cut_off_or_is_another_is_refused(tmp_path, tensors):
    path = write_npz(tmp_path / "model.npz", OPTIONS, tensors)
    stored = path.read_bytes()
    for size in (0, 3, 100, len(stored) // 2, len(stored) - 1):
        path.write_bytes(stored[:size])
        with pytest.raises(PretrainedError, match=r"is no whole .npz archive"):
            read_items(path)
    np.savez(path, weight=np.zeros(3))
    with pytest.raises(PretrainedError, match=r"holds no special:model.yml: it is no model of Marian"):
        read_items(path)
    arrays: dict[str, Any] = {"special:model.yml": np.frombuffer(b"type: s2s", np.int8), "Wemb": np.zeros(3, np.int8)}
    np.savez(path, **arrays)
    with pytest.raises(PretrainedError, match="Wemb: type int8 is not covered"):
        read_items(path)


def test_an_archive_that_is_damaged_inside_or_grows_is_refused(tmp_path, tensors):
    path = tmp_path / "model.npz"
    np.savez_compressed(path, Wemb=tensors["Wemb"])
    stored = path.read_bytes()
    path.write_bytes(stored[:300] + b"\xff" * 40 + stored[340:])
    with pytest.raises(PretrainedError, match=r"is no whole .npz archive"):
        read_items(path)
    np.savez_compressed(path, Wemb=np.zeros(10_000))
    with pytest.raises(PretrainedError, match="it grows to 80128 bytes, more than 16 times its size"):
        read_items(path)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (b"type: 2001-99-99", "is no YAML: month must be in"),
        (b"a: &a [1]\nb: *a", "is no YAML: it has an alias"),
        (b"[1]", r"must hold options by name, got \[1\]"),
    ],
)
def test_options_that_cannot_be_read_are_refused(tmp_path, tensors, options, problem):
    arrays: dict[str, Any] = {"special:model.yml": np.frombuffer(options, np.int8), "Wemb": tensors["Wemb"]}
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(PretrainedError, match=f"model.npz: special:model.yml {problem}"):
        read_items(tmp_path / "model.npz")


@pytest.mark.parametrize("version", [0, 2, 1 << 40])
def test_another_version_is_refused(tmp_path, tensors, version):
    path = write_bin(tmp_path / "model.bin", OPTIONS, tensors, version=version)
    with pytest.raises(PretrainedError, match=f"has version {version}, a .bin of Marian 1"):
        read_items(path)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (0x0802, "type packed16 is not covered; its layout is that of one processor"),
        (0x1801, "type packed8avx2 is not covered"),
        (0x2801, "type packed8avx512 is not covered"),
        (0x5101, "type 0x5101 is not covered; covered: float32, float16, float64, intgemm8, intgemm16"),
        (0x0204, "type 0x0204 is not covered"),
    ],
)
def test_another_type_is_refused_by_its_name(whole, kind, problem):
    stored = bytearray(whole.read_bytes())
    stored[24:32] = struct.pack("<Q", kind)  # of the first item
    whole.write_bytes(stored)
    with pytest.raises(PretrainedError, match=f"model.bin: Wemb: {problem}"):
        read_items(whole)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (8, 0, r"must hold 1\.\.65536 items, got 0"),
        (8, 1 << 60, "must hold 1..65536 items"),
        (16, 1 << 40, "a name of 1099511627776 bytes"),
        (32, 1 << 40, "1099511627776 axes"),
        (40, 1 << 60, "ends at byte"),
    ],
)
def test_sizes_beyond_the_file_are_refused(whole, place, value, problem):
    stored = bytearray(whole.read_bytes())
    stored[place : place + 8] = struct.pack("<Q", value)
    whole.write_bytes(stored)
    with pytest.raises(PretrainedError, match=problem):
        read_items(whole)


def test_a_multiplier_or_a_shape_that_cannot_be_is_refused(whole, tensors):
    stored = whole.read_bytes()
    embedding = np.float32(127 / np.abs(tensors["Wemb"]).max()).tobytes()
    for other in (0.0, float("nan"), float("inf"), -1.0):
        whole.write_bytes(stored.replace(embedding, struct.pack("<f", other), 1))
        with pytest.raises(PretrainedError, match="Wemb: the multiplier of its integers must be above 0"):
            read_items(whole)
    whole.write_bytes(stored.replace(struct.pack("<2i", *tensors["Wemb"].shape), struct.pack("<2i", -4, 4), 1))
    with pytest.raises(PretrainedError, match=r"Wemb: must have a shape of positive sizes, got \(-4, 4\)"):
        read_items(whole)


def test_options_that_are_none_are_refused(tmp_path, tensors, whole):
    with pytest.raises(PretrainedError, match=r"special:model.yml must hold options by name"):
        read_items(write_npz(tmp_path / "model.npz", ["type"], tensors))
    stored = whole.read_bytes()
    whole.write_bytes(stored.replace(b"special:model.yml", b"special:other.yml"))
    with pytest.raises(PretrainedError, match=r"other.yml: type text is not covered"):
        read_items(whole)
    assert TYPES["text"] == 0x0101


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(PretrainedError, match=r"none.bin: cannot be read"):
        read_items(tmp_path / "none.bin")
