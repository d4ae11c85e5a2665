"""What an image holds, checked from inside a running container: labels, packages, commands, and the SBOM against them.

It asks importlib and dpkg-query what is installed. The SBOM was written from files (`deploy/sbom/inventory.py`), so
that the two can differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from deploy.sbom.document import normalized

SBOM = "/opt/glossa/share/sbom.cdx.json"
EXCLUDES = Path(__file__).resolve().parents[2] / "requirements" / "image-excludes.txt"
MOST_PACKAGES_MB = 250  # of a CPU image
LABEL = "org.opencontainers.image."
LABELS = {"title", "description", "vendor", "licenses", "version", "revision", "created", "base.name", "base.digest"}
ADDRESSES = {"source", "url", "documentation"}  # only with SOURCE_URL or a remote, see image.sh

# What the image's environment and its base interpreter can import, and what their requirements lack. The build of ONNX
# Runtime for GPUs has the modules of the other one, and another name.
INSTALLED = """
import importlib.metadata as metadata, json, os, subprocess, sys, sysconfig
LIST = "import importlib.metadata as m; print([[d.metadata['Name'], d.version] for d in m.distributions()])"
from packaging.requirements import Requirement
names = {}
for python in (sys.executable, os.path.realpath(sys.executable)):
    names[python] = eval(subprocess.run([python, "-I", "-c", LIST], check=True, capture_output=True, text=True).stdout)
unmet = set()
others = {"onnxruntime": "onnxruntime-gpu"}
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return version(others[name]) if name in others else None
for distribution in metadata.distributions():
    for line in distribution.requires or ():
        need = Requirement(line)
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        if (found := version(need.name)) is None:
            unmet.add(need.name)
        elif found not in need.specifier:
            unmet.add(line)
folder = sysconfig.get_path("purelib")
size = sum(os.lstat(os.path.join(at, name)).st_size for at, _, files in os.walk(folder) for name in files)
print(json.dumps({
    "distributions": [one for found in names.values() for one in found],
    "unmet": sorted(unmet),
    "size": size,
    "commands": sorted(os.listdir(os.path.dirname(sys.executable))),
    "dpkg": os.path.exists("/usr/bin/dpkg-query"),
}))
"""


def check_contents(execute: Callable[..., str]) -> None:
    """execute: runs a command in the container and returns what it writes."""
    installed = json.loads(execute("python3", "-c", INSTALLED))
    commands = [name for name in installed["commands"] if not name.startswith("python")]
    assert commands == ["glossa"], f"commands that no container needs: {commands}"
    excluded = [line for line in EXCLUDES.read_text().splitlines() if not line.startswith("#")]
    unmet = sorted(map(normalized, installed["unmet"]))
    assert unmet == excluded, f"requirements that are not met: {unmet}; {EXCLUDES.name} lists {excluded}"
    size_mb = installed["size"] / 1e6
    python = {(normalized(name), version) for name, version in installed["distributions"]}
    assert size_mb <= MOST_PACKAGES_MB or "onnxruntime-gpu" in dict(python), f"packages take {size_mb:.0f} MB"
    debian = _debian(execute) if installed["dpkg"] else set()
    text = execute("cat", SBOM)
    check_sbom(text, python, debian)
    hashed = sum(bool(one.get("hashes")) for one in json.loads(text)["components"])
    print(
        f"SBOM: valid CycloneDX 1.6, {len(python)} Python distributions ({hashed} with a hash) and {len(debian)} "
        f"Debian packages, as installed; {size_mb:.0f} MB of Python packages; missing, as meant: {', '.join(excluded)}"
    )


def check_sbom(text: str, python: set[tuple[str, str]], debian: set[tuple[str, str]]) -> None:
    """Fails unless the SBOM is valid and lists exactly these names and versions."""
    from cyclonedx.validation.json import JsonStrictValidator  # compiles grammars for two seconds when it is imported

    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise AssertionError(f"{SBOM} is not CycloneDX: {error}")
    components = json.loads(text)["components"]
    for kind, installed in (("pypi", python), ("deb", debian)):
        listed = {(purl.name, str(purl.version)) for purl in _purls(components) if purl.type == kind}
        assert listed == installed, (
            f"{SBOM} lists, but not installed: {sorted(listed - installed)}; "
            f"installed, but not in it: {sorted(installed - listed)}"
        )


def check_labels(labels: dict[str, str], *, addresses_expected: bool) -> None:
    """Fails unless an image has every label of the OCI specification that says where it comes from."""
    wanted = {f"{LABEL}{name}" for name in LABELS | (ADDRESSES if addresses_expected else set())}
    missing = sorted(name for name in wanted if not labels.get(name))
    assert not missing, f"labels without a value: {missing}"
    print(f"labels: {', '.join(sorted(name.removeprefix(LABEL) for name in labels if name.startswith(LABEL)))}")


def _debian(execute: Callable[..., str]) -> set[tuple[str, str]]:
    lines = execute("dpkg-query", "--show", "--showformat", "${Package} ${Version} ${db:Status-Status}\\n").splitlines()
    fields = [line.split() for line in lines]
    return {(name, version) for name, version, status in fields if status == "installed"}


def _purls(components: Sequence[dict[str, Any]]) -> list[PackageURL]:
    return [PackageURL.from_string(one["purl"]) for one in components if "purl" in one]
