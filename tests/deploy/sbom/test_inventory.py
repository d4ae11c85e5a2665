"""What is found on disk, against what importlib lists and against files that are written here."""

import json
import re
import subprocess
import sys
from email.message import Message
from importlib import metadata

import pytest

from deploy.sbom import inventory
from deploy.sbom.document import normalized
from tests.packages import ROOT

STATUS = """Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b13
Description: a shell
 Version: of the description

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def test_the_distributions_of_a_folder_are_those_that_importlib_lists(tmp_path):
    for name, version in (("one", "1.0"), ("two_parts", "2.0")):
        folder = tmp_path / "lib" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    found = {(one["name"], one["version"]) for one in inventory.distributions([str(tmp_path)])}
    listed = metadata.distributions(path=[str(tmp_path / "lib")])
    assert found == {(one.metadata["Name"], one.version) for one in listed} == {("one", "1.0"), ("two_parts", "2.0")}


def test_only_installed_debian_packages_count(tmp_path):
    (tmp_path / "status").write_text(STATUS)
    found = inventory.debian_packages(tmp_path / "status")
    assert found == [{"name": "bash", "version": "5.2.15-2+b13", "arch": "amd64"}]
    assert inventory.debian_packages(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License-Expression": "MIT", "License": "other"}, "MIT"),
        ({"License": "BSD-3-Clause"}, "BSD-3-Clause"),
        ({"License": "the\nwhole text", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT License"),
        ({}, None),
    ],
)
def test_a_licence_is_read_from_the_best_field(fields, expected):
    message = Message()
    for name, value in fields.items():
        message[name] = value
    assert inventory.license_of(message) == expected


def test_the_program_runs_without_any_package():
    program = ROOT / "deploy/sbom/inventory.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout).keys() == {"distributions", "debian", "system", "python"}


def test_the_images_lack_what_they_exclude_and_the_full_lock_has_it():
    excluded = {line for line in (ROOT / "requirements/image-excludes.txt").read_text().splitlines() if line[0] != "#"}
    assert excluded
    for name, holds in (("serve.txt", False), ("gpu.txt", False), ("dev.txt", True)):
        pins = re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        assert (excluded <= set(map(normalized, pins))) is holds, name
