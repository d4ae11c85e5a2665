"""Translated files until they are fetched."""

import pytest

from glossa.web import downloads
from glossa.web.downloads import Downloads
from glossa.web.refusals import Refused


def test_the_oldest_files_go_first(monkeypatch):
    monkeypatch.setattr(downloads, "MAX_BYTES", 10)
    files = Downloads()
    first, second = files.keep(b"12345"), files.keep(b"67890")
    assert (files.find(first), files.find(second)) == (b"12345", b"67890")
    third = files.keep(b"x")
    assert (files.find(second), files.find(third)) == (b"67890", b"x")
    with pytest.raises(Refused, match="no such file; it is kept for 10 minutes"):
        files.find(first)


def test_old_files_go(monkeypatch):
    files = Downloads()
    key = files.keep(b"x")
    monkeypatch.setattr(downloads, "KEPT_S", 0.0)
    with pytest.raises(Refused):
        files.find(key)
