"""The bundle's manifest and files: what is read back, and what is refused with which message."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from export.bundle import directory as bundle
from export.bundle.directory import (
    BundleExistsError,
    DamagedFileError,
    GraphError,
    ManifestError,
    NotABundleError,
    NotVerifiedError,
    ShortlistError,
    UnsafeFileError,
    VersionError,
    check_bundle,
    load_bundle,
    load_manifest,
    load_shortlist,
    read_graph,
    verify_files,
    write_bundle,
)
from export.bundle.manifest import FORMAT_VERSION, FileDigest
from tests.export.bundle.manifests import a_manifest, fill
from tests.full_disk import failures
from tests.sealed_manifest import write_manifest


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "bundle"
    write_bundle(path, fill)
    return path


LATER = "2027-01-01T00:00:00+00:00"


def edit(path, change):
    """Changes the JSON of a manifest in place."""
    values = json.loads((path / "manifest.json").read_text())
    change(values)
    write_manifest(path, json.dumps(values).encode())


def test_what_is_written_is_read_back(written):
    manifest = load_bundle(written)
    data = b"tokenizer.json" * 7
    assert manifest.files["tokenizer.json"] == FileDigest(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
    assert dataclasses.replace(manifest, files={}) == a_manifest()
    assert manifest.variant("fp32").states[0].shape == ("batch", 2, "capacity", 8)
    with pytest.raises(KeyError, match="no int8 graphs here; there are: fp32"):
        manifest.variant("int8")


def test_a_bundle_can_be_reached_through_a_link(written):
    (written.parent / "current").symlink_to(written)
    assert load_bundle(written.parent / "current") == load_bundle(written)


def test_a_directory_without_manifest_is_not_a_bundle(written, tmp_path):
    (written / "manifest.json").unlink()
    with pytest.raises(NotABundleError, match=r"bundle: has no manifest.json.*fix: run `glossa export`"):
        load_bundle(written)
    with pytest.raises(NotABundleError, match="No such file"):
        load_bundle(tmp_path / "nowhere")


def test_the_digest_of_the_manifest_covers_every_byte_of_it(written):
    sha256 = hashlib.sha256((written / "manifest.json").read_bytes()).hexdigest()
    assert (written / "manifest.sha256").read_text() == f"{sha256}  manifest.json\n"
    assert check_bundle(written).sha256 == sha256
    with (written / "manifest.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(DamagedFileError, match=r"manifest.sha256: is not the digest of manifest.json; expected"):
        load_manifest(written)


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: text.upper(), lambda text: b"0" + text[1:]])
def test_a_digest_of_another_form_is_refused(written, change):
    file = written / "manifest.sha256"
    text = file.read_bytes()
    file.write_bytes(change(text) if change(text) != text else b"1" + text[1:])
    with pytest.raises(DamagedFileError, match=r"manifest.sha256: is not the digest of manifest.json; expected"):
        load_manifest(written)


def test_a_bundle_of_today_needs_its_digest_and_one_of_format_9_does_not(written):
    edit(written, lambda manifest: manifest.update(format_version=9))
    (written / "manifest.sha256").unlink()
    assert load_bundle(written).format_version == FORMAT_VERSION
    edit(written, lambda manifest: manifest.update(format_version=FORMAT_VERSION))
    (written / "manifest.sha256").unlink()
    with pytest.raises(DamagedFileError, match=r"manifest.sha256: is missing"):
        load_bundle(written)


def test_a_graph_that_no_export_writes_is_refused_though_its_digest_is_right(tmp_path):
    def hostile(directory):
        manifest = fill(directory)
        (directory / "fp32/encode.onnx").write_bytes(b"not a graph")
        return manifest

    with pytest.raises(GraphError, match=r"fp32/encode.onnx: is not a graph: it has a field .*; fix: export"):
        write_bundle(tmp_path / "bundle", hostile)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_too_large_is_not_read(written, monkeypatch):
    monkeypatch.setattr(bundle, "MAX_GRAPH_BYTES", 100)
    with pytest.raises(GraphError, match=r"is too large for a graph; expected at most 100 bytes, and the weights in"):
        load_bundle(written)


def test_a_graph_is_read_only_while_it_is_the_one_that_was_checked(written):
    manifest = load_bundle(written)
    data = (written / "fp32/encode.onnx").read_bytes()
    assert read_graph(written, manifest, "fp32/encode.onnx") == data
    (written / "fp32/encode.onnx").write_bytes(b"x" + data[1:])
    with pytest.raises(DamagedFileError, match="has the wrong SHA-256"):
        read_graph(written, manifest, "fp32/encode.onnx")


@pytest.mark.parametrize("name", ["tokenizer.json", "manifest.json", "fp32/decode.onnx"])
def test_a_file_that_is_replaced_while_the_bundle_is_opened_is_found(written, name):
    checked = check_bundle(written)
    checked.check_unchanged()
    data = (written / name).read_bytes()
    (written / name).unlink()
    (written / name).write_bytes(data)
    with pytest.raises(DamagedFileError, match=f"{name}: was changed while the bundle was opened; fix: replace a"):
        checked.check_unchanged()
    (written / name).unlink()
    with pytest.raises(DamagedFileError, match=rf"{name}: cannot be read \(No such file"):
        checked.check_unchanged()


def test_only_the_files_asked_for_are_read(written):
    (written / "fp32/decode.onnx").write_bytes(b"damaged")
    assert set(check_bundle(written, only=["tokenizer.json"]).stamps) == {"tokenizer.json", "manifest.json"}
    with pytest.raises(DamagedFileError, match="has the wrong size"):
        check_bundle(written, only=["fp32/decode.onnx"])


def test_a_missing_file_is_named(written):
    (written / "fp32/decode.onnx").unlink()
    with pytest.raises(DamagedFileError, match=r"fp32/decode.onnx: is missing; fix:"):
        load_bundle(written)


def test_a_truncated_file_is_named_with_both_sizes(written):
    (written / "tokenizer.json").write_bytes(b"short")
    with pytest.raises(DamagedFileError, match=r"tokenizer.json: has the wrong size; expected 98 bytes, found 5"):
        load_bundle(written)


def test_one_flipped_bit_is_found(written):
    data = bytearray((written / "fp32/encode.onnx").read_bytes())
    data[3] ^= 1
    (written / "fp32/encode.onnx").write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"encode.onnx: has the wrong SHA-256; expected [0-9a-f]{64}, found"):
        load_bundle(written)


@pytest.mark.parametrize("name", ["fp32/decode.onnx.data", "plugin.so", "fp32/deep/x", ".hidden"])
def test_an_unlisted_file_is_refused(written, name):
    (written / name).parent.mkdir(exist_ok=True)
    (written / name).write_bytes(b"x")
    with pytest.raises(DamagedFileError, match=r"is not listed in manifest.json.*fix: remove it"):
        load_bundle(written)


def test_an_empty_directory_is_refused(written):
    (written / "more").mkdir()
    with pytest.raises(DamagedFileError, match="more: is an empty directory"):
        load_bundle(written)


def _symlink(file, copy):
    file.symlink_to(copy)


def _hard_link(file, copy):
    os.link(copy, file)


def _pipe(file, copy):
    os.mkfifo(file)


@pytest.mark.parametrize("swap", [_symlink, _hard_link, _pipe])
@pytest.mark.parametrize("name", ["fp32/decode.onnx", "manifest.json"])
def test_anything_but_a_plain_file_is_refused(written, tmp_path, swap, name):
    copy = tmp_path / "copy"
    (written / name).rename(copy)
    swap(written / name, copy)
    with pytest.raises(UnsafeFileError, match=f"{name}: .*fix: replace it by a plain file"):
        load_bundle(written)


def test_a_linked_folder_is_refused(written, tmp_path, monkeypatch):
    (written / "fp32").rename(tmp_path / "fp32")
    (written / "fp32").symlink_to(tmp_path / "fp32")
    with pytest.raises(DamagedFileError, match="fp32: is not listed"):
        load_bundle(written)
    monkeypatch.setattr(bundle, "walk", lambda root, path: [])  # the second wall alone: opening follows no link
    with pytest.raises(UnsafeFileError, match=r"fp32/.*plain file"):
        verify_files(written, load_manifest(written))


def test_a_directory_in_a_files_place_is_refused(written):
    (written / "tokenizer.json").unlink()
    (written / "tokenizer.json").mkdir()
    (written / "tokenizer.json/tokenizer.json").write_bytes(b"x")
    with pytest.raises(DamagedFileError, match=r"tokenizer.json/tokenizer.json: is not listed"):
        load_bundle(written)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 7, 10, 17, 0, "1", True, None, 1.5])
def test_an_unknown_version_is_refused_before_its_keys_are_read(written, version):
    edit(written, lambda m: m.update(format_version=version, novelty=1))
    with pytest.raises(
        VersionError,
        match=r"unknown format_version; expected 8 or 9 or 11 or 12 or 13 or 14 or 15 or 16, found .*; fix: export ",
    ):
        load_manifest(written)


@pytest.mark.parametrize(
    "parity",
    [
        {},
        {"passed": False, "checks": [{"name": "a", "passed": True}]},
        {"passed": True, "checks": [{"name": "a", "passed": True}, {"name": "decode steps", "passed": False}]},
        {"passed": True, "checks": []},
    ],
)
def test_a_bundle_whose_verification_failed_is_refused(written, parity):
    edit(written, lambda m: m.update(parity=parity))
    with pytest.raises(NotVerifiedError, match=r"verification failed: (decode steps|None|no report)"):
        load_manifest(written)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "nonsense",
        '{"a": NaN}',
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        b"\xff{}",
        '{"a": ' + "9" * 5000 + "}",
    ],
    ids=range(9),
)
def test_broken_json_is_refused(written, text):
    write_manifest(written, text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        ManifestError, match=r"manifest.json: is not (JSON|a JSON object).*fix: export the bundle again"
    ):
        load_manifest(written)


def test_an_endless_manifest_is_refused(written):
    write_manifest(written, b" " * (bundle.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(ManifestError, match="is too large; expected at most 4194304 bytes"):
        load_manifest(written)


SHORT = {"always": [2, 9], "by_source": {"4": [7, 5], "5": []}}


def shortlist_file(tmp_path, values):
    file = tmp_path / "shortlist.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def test_a_shortlist_that_is_missing_damaged_endless_or_a_link_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DamagedFileError, match=r"shortlist.json: is missing"):
        load_shortlist(tmp_path / "shortlist.json")
    file = shortlist_file(tmp_path, SHORT)
    (tmp_path / "link.json").symlink_to(file)
    with pytest.raises(UnsafeFileError):
        load_shortlist(tmp_path / "link.json")
    file.write_text("[]")
    with pytest.raises(ShortlistError, match=r"shortlist\.json: is not a JSON object but list; fix: export the bundle"):
        load_shortlist(file)
    file.write_text(json.dumps({"always": [10], "by_source": {}}))
    with pytest.raises(
        ShortlistError, match=r"always must be a list of ids of 0\.\.9, got \[10\]; fix: export the bundle"
    ):
        load_shortlist(file, vocab_size=10)
    monkeypatch.setattr(bundle, "MAX_SHORTLIST_BYTES", 20)
    with pytest.raises(ShortlistError, match="is too large; expected at most 20 bytes"):
        load_shortlist(file)


def test_an_existing_bundle_is_replaced_only_when_asked(written):
    with pytest.raises(BundleExistsError, match="exists already"):
        write_bundle(written, fill)
    write_bundle(written, lambda d: dataclasses.replace(fill(d), created=LATER), replace=True)
    assert load_bundle(written).created == LATER
    assert [p.name for p in written.parent.iterdir()] == ["bundle"]


def test_a_directory_that_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("dear")
    with pytest.raises(BundleExistsError, match="is not a bundle"):
        write_bundle(tmp_path / "home", fill, replace=True)
    assert (tmp_path / "home/letter.txt").read_text() == "dear"


def test_a_failed_build_leaves_the_old_bundle_and_nothing_else(written):
    def fails(directory):
        fill(directory)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_bundle(written, fails, replace=True)
    assert load_bundle(written).created == a_manifest().created
    assert [p.name for p in written.parent.iterdir()] == ["bundle"]


def test_a_bundle_is_replaced_whole_or_not_at_all_whichever_operation_fails(written):
    def later(directory):
        return dataclasses.replace(fill(directory), created=LATER)

    seen = []
    for error in failures(lambda disk: write_bundle(written, later, replace=True, disk=disk)):
        assert isinstance(error, OSError)
        seen.append(load_bundle(written).created)
        assert [path.name for path in written.parent.iterdir()] == ["bundle"]
    assert seen == [a_manifest().created] * (len(seen) - 1) + [LATER], "the last operation comes after the rename"
    assert len(seen) == 2 + 7 + 1 + 2 + 1, "two writes, six files and a folder, the directory, two renames, the parent"
    assert load_bundle(written).created == LATER


def test_a_bundle_that_cannot_take_its_name_leaves_the_old_one(written, monkeypatch):
    rename = Path.rename

    def fails(source, target):
        if source.suffix == ".partial":
            raise OSError(5, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="Input/output error"):
        write_bundle(written, lambda d: dataclasses.replace(fill(d), created=LATER), replace=True)
    assert load_bundle(written).created == a_manifest().created
    assert [p.name for p in written.parent.iterdir()] == ["bundle"]


def test_a_build_that_failed_verification_is_not_put_in_place(tmp_path):
    with pytest.raises(NotVerifiedError):
        write_bundle(tmp_path / "new", lambda d: dataclasses.replace(fill(d), parity={"passed": False, "checks": []}))
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_can_be_read_by_others_than_its_writer(written):
    umask = os.umask(0)
    os.umask(umask)
    assert written.stat().st_mode & 0o777 == 0o777 & ~umask
    assert {file.stat().st_mode & 0o777 for file in written.rglob("*") if file.is_file()} == {0o664 & ~umask}


def test_files_that_only_their_writer_could_read_are_opened_to_the_others(tmp_path):
    def fill_privately(directory):
        manifest = fill(directory)
        for file in directory.rglob("*"):
            if file.is_file():
                file.chmod(0o600)
        return manifest

    write_bundle(tmp_path / "bundle", fill_privately)
    modes = {file.stat().st_mode for file in (tmp_path / "bundle").rglob("*") if file.is_file()}
    assert modes == {(tmp_path / "bundle" / "manifest.json").stat().st_mode}
