import errno

import pytest

from model.checkpoints.atomic_write import (
    DamagedError,
    Disk,
    new_directory,
    recover,
    verify,
    write_directory,
    write_file,
)
from tests.full_disk import failures


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    for error in failures(lambda disk: write_file(path, b"new content", disk)):
        assert isinstance(error, OSError)
        assert path.read_bytes() in (b"old", b"new content")
        assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"new content"


def test_a_directory_is_created_whole_or_not_at_all(tmp_path):
    path, files = tmp_path / "directory", {"a": b"1", "b": b"22"}
    for error in failures(lambda disk: write_directory(path, files, disk)):
        assert isinstance(error, OSError)
        if path.exists():  # the rename had happened
            verify(path, files)
            assert {name: (path / name).read_bytes() for name in files} == files
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        assert not list(tmp_path.iterdir())
    verify(path, ["b"])
    assert (path / "b").read_bytes() == b"22"
    (path / "a").write_bytes(b"2")
    with pytest.raises(DamagedError, match="a: SHA-256 must be"):
        verify(path, ["b"])


def fill_directory(path, disk=None, *, replace=False):
    with new_directory(path, disk, replace=replace) as directory:
        (directory / "inner").mkdir()
        (directory / "inner/file").write_bytes(b"new")


def test_a_directory_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "directory"
    path.mkdir()
    (path / "file").write_bytes(b"old")
    old, new = {"file": b"old"}, {"inner/file": b"new"}

    def content():
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    seen = []
    for error in failures(lambda disk: fill_directory(path, disk, replace=True)):
        assert isinstance(error, OSError)
        assert list(tmp_path.iterdir()) == [path]
        seen.append(content())
    assert seen == [old] * 5 + [new]  # the renames are operations 4 and 5
    assert content() == new


def test_a_directory_with_content_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "directory"
    path.mkdir()
    (path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="not empty"):
        fill_directory(path)
    assert sorted(tmp_path.rglob("*")) == [path, path / "file"]


def test_an_interrupted_replacement_leaves_the_old_directory(tmp_path):
    path = tmp_path / "directory"
    path.mkdir()

    class Interrupted(Disk):
        def rename(self, source, target):
            if source.suffix == ".partial":
                raise KeyboardInterrupt
            super().rename(source, target)

    with pytest.raises(KeyboardInterrupt):
        fill_directory(path, Interrupted(), replace=True)
    assert list(tmp_path.rglob("*")) == [path]


def test_a_new_directory_appears_with_its_parents(tmp_path):
    fill_directory(tmp_path / "far/away")
    assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob("*"))] == [
        "far",
        "far/away",
        "far/away/inner",
        "far/away/inner/file",
    ]


def test_what_a_killed_process_left_is_cleared_by_the_next_call(tmp_path):
    path, other = tmp_path / "directory", tmp_path / ".directory.notes.partial"
    for left in (path, tmp_path / ".directory.0123abcd.partial", tmp_path / ".directory.0123abcd.old", other):
        left.mkdir()
        (left / "file").write_bytes(b"left")
    fill_directory(path, replace=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [other.name, "directory"], "another's file stays"
    assert (path / "inner/file").read_bytes() == b"new"


def test_a_directory_moved_aside_by_a_killed_process_gets_its_name_back(tmp_path):
    old = tmp_path / ".directory.0123abcd.old"
    old.mkdir()
    (old / "file").write_bytes(b"old")
    recover(tmp_path / "directory")
    assert list(tmp_path.iterdir()) == [tmp_path / "directory"]
    assert (tmp_path / "directory/file").read_bytes() == b"old"


def test_a_directory_that_another_call_is_filling_is_left_alone(tmp_path):
    path = tmp_path / "directory"
    with new_directory(path) as one:
        (one / "file").write_bytes(b"one")
        with new_directory(path) as other:
            (other / "file").write_bytes(b"other")
            assert one.exists()
        assert (one / "file").read_bytes() == b"one"
        path.joinpath("file").unlink()
    assert (path / "file").read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_where_there_are_no_locks_nothing_is_cleared(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fails)
    (tmp_path / ".directory.0123abcd.partial").mkdir()
    fill_directory(tmp_path / "directory")
    assert (tmp_path / ".directory.0123abcd.partial").exists()
    assert (tmp_path / "directory/inner/file").read_bytes() == b"new"
