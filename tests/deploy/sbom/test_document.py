"""An SBOM of a made-up inventory: valid, complete, and refused by the image's check once the image differs."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from deploy.sbom.document import document, hashes_of
from tests.deploy.image_contents import check_labels, check_sbom

INVENTORY = {
    "distributions": [
        {
            "name": "glossa",
            "version": "1.0",
            "license": "Apache-2.0",
            "summary": "Serves.",
            "requires": ["Some_Thing>=1", 'typing-extensions; python_version < "3"', 'torch; extra == "train"'],
        },
        {"name": "Some_Thing", "version": "2.0", "license": "A license, by name", "summary": None, "requires": []},
        {"name": "torch", "version": "3.0", "license": None, "summary": None, "requires": []},
    ],
    "debian": [{"name": "bash", "version": "1:5.2-2+b1", "arch": "amd64"}],
    "system": {"id": "debian", "name": "Debian GNU/Linux", "version": "12"},
    "python": "3.11.2",
}
PYTHON = {("glossa", "1.0"), ("some-thing", "2.0"), ("torch", "3.0")}
DEBIAN = {("bash", "1:5.2-2+b1")}
CREATED = datetime(2030, 1, 2, tzinfo=UTC)


def made(hashes=None):
    return document(INVENTORY, hashes=hashes or {}, target="cpu", revision="abc", created=CREATED)


def components(text):
    return {one["name"]: one for one in json.loads(text)["components"]}


def test_it_is_valid_and_lists_what_is_installed():
    check_sbom(made(), PYTHON, DEBIAN)


@pytest.mark.parametrize(
    ("python", "debian", "message"),
    [
        (PYTHON | {("extra", "1")}, DEBIAN, r"not in it: \[\('extra', '1'\)\]"),
        (PYTHON - {("torch", "3.0")}, DEBIAN, r"not installed: \[\('torch', '3.0'\)\]"),
        (PYTHON, set(), r"not installed: \[\('bash'"),
        ({*(PYTHON - {("torch", "3.0")}), ("torch", "3.1")}, DEBIAN, "3.1"),
    ],
)
def test_any_difference_is_refused(python, debian, message):
    with pytest.raises(AssertionError, match=message):
        check_sbom(made(), python, debian)


def test_what_is_no_cyclonedx_is_refused():
    with pytest.raises(AssertionError, match="is not CycloneDX"):
        check_sbom(made().replace('"type": "library"', '"type": "thing"'), PYTHON, DEBIAN)


def test_licences_hashes_and_dependencies_are_stated():
    text = made({"some-thing": "ab" * 32})
    found = components(text)
    assert found["glossa"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert found["some-thing"]["licenses"] == [{"license": {"name": "A license, by name"}}]
    assert found["some-thing"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    graph = {one["ref"]: one.get("dependsOn", []) for one in json.loads(text)["dependencies"]}
    assert graph["pypi/glossa@1.0"] == ["pypi/some-thing@2.0"]
    assert graph["image"] == ["deb/bash@1:5.2-2+b1/amd64", "pypi/glossa@1.0", "system"]


def test_the_same_image_has_the_same_text():
    assert made() == made()


def test_hashes_come_from_pips_report_or_the_file_itself(tmp_path):
    wheel = tmp_path / "own wheel.whl"
    wheel.write_bytes(b"wheel")
    entries = [
        {"metadata": {"name": "A.b"}, "download_info": {"url": "", "archive_info": {"hashes": {"sha256": "12"}}}},
        {"metadata": {"name": "own"}, "download_info": {"url": wheel.as_uri(), "archive_info": {}}},
    ]
    assert hashes_of([{"install": [one]} for one in entries]) == {
        "a-b": "12",
        "own": hashlib.sha256(b"wheel").hexdigest(),
    }


def test_a_label_without_a_value_is_refused(capsys):
    names = ("title", "description", "vendor", "licenses", "version", "revision", "created", "base.name", "base.digest")
    labels = {f"org.opencontainers.image.{name}": "value" for name in names}
    check_labels(labels, addresses_expected=False)
    with pytest.raises(AssertionError, match=r"image\.source"):
        check_labels(labels, addresses_expected=True)
    with pytest.raises(AssertionError, match=r"image\.revision"):
        check_labels(labels | {"org.opencontainers.image.revision": ""}, addresses_expected=False)
