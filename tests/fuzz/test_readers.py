"""Every reader of the fuzzer reads its seeds, and what it may not raise is a finding."""

import pytest

from tests.fuzz.reader import Reader
from tests.fuzz.readers import MODULES, NAMES, reader_of

STEP = 40  # of the thousand messages


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MODULES["messages"]])
def test_seeds_are_read(name, tmp_path):
    reader = reader_of(name, tmp_path)
    assert reader.seeds
    for seed in reader.seeds:
        reader(seed)
        assert len(seed) <= reader.max_bytes, "it would be cut"


def test_messages_are_answered(tmp_path):
    reader = reader_of("messages", tmp_path)
    for seed in reader.seeds[::STEP]:
        reader(seed)


@pytest.mark.parametrize("raised", [KeyError("a"), ValueError(""), ValueError("a" * 3000), ValueError("\ud800")])
def test_another_error_and_a_message_that_cannot_be_sent_are_findings(raised):
    def read(data):
        raise raised

    with pytest.raises((KeyError, AssertionError, UnicodeError)):
        Reader(read=read, errors=(ValueError,), seeds=())(b"")
