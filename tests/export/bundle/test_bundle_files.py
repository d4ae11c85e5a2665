"""Files that nothing has checked: which are opened, and how what the system reports becomes a message."""

import os
import re
import shutil

import pytest

from export.bundle import bundle_files
from export.bundle.bundle_files import DamagedFileError, UnsafeFileError, directory, hole_bytes, open_regular, walk
from export.bundle.directory import load_bundle, write_bundle
from tests.export.bundle.manifests import fill


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "bundle"
    write_bundle(path, fill)
    return path


def test_a_volume_of_kubernetes_is_read_behind_its_links(written, tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    written.rename(volume / "..2026_01_01")
    (volume / "..data").symlink_to("..2026_01_01")
    for entry in (volume / "..data").iterdir():
        (volume / entry.name).symlink_to(f"..data/{entry.name}")
    with pytest.raises(UnsafeFileError, match=re.escape(f"fix: serve {volume}/..data, the directory behind the links")):
        load_bundle(volume)
    assert load_bundle(volume / "..data").task == "translation"


def test_a_file_that_every_user_can_write_is_refused_unless_its_mount_is_read_only(written, monkeypatch):
    (written / "tokenizer.json").chmod(0o666)
    with pytest.raises(UnsafeFileError, match=r"can be written by every user \(-rw-rw-rw-\); fix: `chmod -R o-w`"):
        load_bundle(written)
    found = os.statvfs(written)

    class ReadOnly:
        f_flag = found.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "fstatvfs", lambda file: ReadOnly)
    load_bundle(written)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(written):
    os.chown(written / "tokenizer.json", 1234, -1)
    with pytest.raises(UnsafeFileError, match=r"belongs to another user; expected user 0, found 1234; fix: change the"):
        load_bundle(written)
    for path in (written, *written.rglob("*")):
        os.chown(path, 1234, -1)
    load_bundle(written)  # all of one user, and none of the server's


def test_holes_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_files, "MAX_HOLE_BYTES", 1 << 24)
    with (tmp_path / "file").open("wb+") as file:
        file.write(b"x" * 8192)
        file.flush()
        assert hole_bytes(file.fileno(), 8192) == 0
        file.seek(1 << 20)
        file.write(b"x" * 4096)
        file.truncate(1 << 21)
        file.flush()
        found = hole_bytes(file.fileno(), 1 << 21)
        assert 1 << 20 < found < 1 << 21
        assert file.seek(0, os.SEEK_CUR) == 0, "what reads it then begins at its beginning"
        file.truncate(1 << 40)
        assert hole_bytes(file.fileno(), 1 << 40) > 1 << 24


def test_folders_are_walked_without_following_links(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with directory(tmp_path) as root:
        assert sorted(walk(root, tmp_path)) == ["a/b/file", "link"]
        (tmp_path / "a/b/c/d/e/f").mkdir(parents=True)
        with pytest.raises(DamagedFileError, match=r"a/b/c/d/e: is nested more than 4 deep"):
            list(walk(root, tmp_path))
        shutil.rmtree(tmp_path / "a/b/c/d")
        with pytest.raises(DamagedFileError, match=r"a/b/c/: is an empty directory|a/b/c: is an empty directory"):
            list(walk(root, tmp_path))


@pytest.mark.parametrize("kind", ["device", "socket", "directory"])
def test_other_kinds_of_files_are_refused(tmp_path, kind):
    import socket

    if kind == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        try:
            os.mknod(tmp_path / "file", 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("no devices here")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(tmp_path / "file"))
    else:
        (tmp_path / "file").mkdir()
    with directory(tmp_path) as root, pytest.raises(UnsafeFileError, match=r"/file: .*fix: replace it by a plain file"):
        open_regular(root, "file", tmp_path)
