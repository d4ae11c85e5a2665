"""Shortlists that are whole, damaged, or of another vocabulary."""

import struct

import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.marian.shortlist import MAGIC, checksum_of, is_shortlist, read_shortlist
from tests.marian_files import shortlist_of, write_shortlist

LISTS = [[3, 5], [], [4], [0, 1, 2, 3, 4, 5], [5], [1, 2]]


@pytest.fixture
def whole(tmp_path):
    return write_shortlist(tmp_path / "lex.s2t.bin", LISTS)


def with_checksum(data):
    return data[:8] + struct.pack("<Q", checksum_of(data)) + data[16:]


def test_lists_are_those_of_the_file(whole):
    assert is_shortlist(whole)
    always, by_source, is_ranked = shortlist_of(read_shortlist(whole, len(LISTS), 6))
    assert not is_ranked
    assert always == [0, 1, 2]
    assert by_source == {source: own for source, own in enumerate(LISTS) if own}


def test_a_checksum_is_that_of_boosts_hash_combine():
    """By hand for one word: 0 ^ (5 + 0x9e3779b9 + 0 + 0), then the same with a second one."""
    first = 5 + 0x9E3779B9
    assert checksum_of(bytes(16) + struct.pack("<Q", 5)) == first
    second = first ^ (7 + 0x9E3779B9 + (first << 6) + (first >> 2))
    assert checksum_of(bytes(16) + struct.pack("<QQ", 5, 7)) == second


def test_a_vocabulary_of_another_size_is_refused(whole):
    for size in (5, 7, 32000):
        with pytest.raises(PretrainedError, match=f"has 6 source tokens where the vocabulary has {size}: .* another"):
            read_shortlist(whole, size, 6)


def test_target_tokens_beyond_the_vocabulary_are_refused(tmp_path):
    path = write_shortlist(tmp_path / "lex.bin", [[1], [9], [2]], first=1)
    with pytest.raises(PretrainedError, match="lists target token 9 where the vocabulary has 9"):
        read_shortlist(path, 3, 9)


def test_a_file_that_was_cut_off_or_changed_is_refused(whole):
    stored = whole.read_bytes()
    for size in (*range(8, len(stored), 7), len(stored) - 1):
        whole.write_bytes(stored[:size])
        with pytest.raises(PretrainedError, match=r"must have .*; if it was cut off on its way, fetch it again"):
            read_shortlist(whole, len(LISTS), 6)
    whole.write_bytes(stored[:60] + b"\7" + stored[61:])
    with pytest.raises(PretrainedError, match=r"must have checksum .*; it is damaged, fetch it again"):
        read_shortlist(whole, len(LISTS), 6)
    ends = bytearray(stored)
    ends[56:64] = struct.pack("<Q", 1 << 40)
    whole.write_bytes(with_checksum(bytes(ends)))
    with pytest.raises(PretrainedError, match="the ends of its lists must grow from 0 to"):
        read_shortlist(whole, len(LISTS), 6)


def test_a_text_is_refused_with_the_command_that_converts_it(tmp_path):
    path = tmp_path / "lex.s2t"
    path.write_text("o the 0.4\n")
    assert not is_shortlist(path)
    with pytest.raises(PretrainedError, match="is no binary shortlist of Marian: text is not covered; convert it with"):
        read_shortlist(path, 6, 6)
    path.write_bytes(MAGIC[:7])
    assert not is_shortlist(path)
