import pytest

from model.atomic_write import DamagedError, verify, write_directory, write_file
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
