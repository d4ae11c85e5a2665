import asyncio
import os
from pathlib import Path

import pytest

from service.edge.security import watched_files
from service.edge.security.watched_files import WatchedFiles
from service.errors import StartupError


class Reader:
    """Reads a file of numbers."""

    def __init__(self, path):
        self.path, self.value = path, 0

    def read(self):
        text = self.path.read_text()
        if not text.isdigit():
            raise StartupError(f"no number: {text}; fix: write one")
        self.value = int(text)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_files_are_read_at_first_and_when_they_change(file):
    reader = Reader(file)
    watched = WatchedFiles("numbers", [file], reader.read)
    assert (reader.value, watched.refresh()) == (1, None)
    file.write_text("22")
    assert (watched.refresh(), reader.value, watched.refresh()) == (True, 22, None)


def test_a_bad_change_is_logged_once_and_leaves_what_was_read(file, caplog):
    reader = Reader(file)
    watched = WatchedFiles("numbers", [file], reader.read)
    file.write_text("none")
    assert [watched.refresh() for _ in range(3)] == [None, False, None]
    assert reader.value == 1
    (refused,) = [record for record in caplog.records if record.getMessage() == "refused_files"]
    assert refused.fields == {"kind": "numbers", "files": [str(file)], "reason": "no number: none; fix: write one"}
    file.write_text("333")
    assert (watched.refresh(), reader.value) == (True, 333)


def test_files_that_fit_only_together_may_be_exchanged_one_after_the_other(file, caplog):
    other = file.with_name("other")
    other.write_text("1")

    def read():
        if file.read_text() != other.read_text():
            raise StartupError("they do not fit; fix: write both")

    watched = WatchedFiles("numbers", [file, other], read)
    file.write_text("22")
    assert watched.refresh() is None
    other.write_text("22")
    assert watched.refresh() is True
    assert not [record for record in caplog.records if record.getMessage() == "refused_files"]


def test_bad_files_at_the_start_are_an_error(file):
    file.write_text("none")
    with pytest.raises(StartupError, match="no number"):
        WatchedFiles("numbers", [file], Reader(file).read)


def test_a_replaced_symbolic_link_is_a_change(file, tmp_path):
    folder, link = tmp_path / "data", tmp_path / "link"
    folder.mkdir()
    (folder / "number").write_text("2")
    os.utime(folder / "number", ns=(0, os.stat(file).st_mtime_ns))
    link.symlink_to(file)
    reader = Reader(link)
    watched = WatchedFiles("numbers", [link], reader.read)
    unfinished = Path(f"{link}.new")
    unfinished.symlink_to(folder / "number")
    unfinished.rename(link)
    assert (watched.refresh(), reader.value) == (True, 2)


def test_a_file_that_is_gone_is_a_change(file):
    watched = WatchedFiles("numbers", [file, file.with_name("other")], Reader(file).read)
    file.with_name("other").touch()
    assert watched.refresh() is True
    file.with_name("other").unlink()
    assert watched.refresh() is True


async def test_watching_tells_of_each_change(file, monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_S", 0.001)
    changes: asyncio.Queue[bool] = asyncio.Queue()
    watched = WatchedFiles("numbers", [file], Reader(file).read)
    watching = asyncio.create_task(watched.watch(changes.put_nowait))
    for text, is_taken in (("22", True), ("none", False), ("4444", True)):
        file.write_text(text)
        assert await changes.get() is is_taken
    watching.cancel()
