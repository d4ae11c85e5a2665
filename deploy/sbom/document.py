"""An image's software bill of materials as CycloneDX JSON, from an inventory and pip's report of what it installed."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

OWN = "glossa"  # the distribution whose requirements head the graph of dependencies
_NAMESPACE = uuid.UUID("6f1e7c43-0d0c-4a5e-9d0f-5a4f4a3b5d11")  # of serial numbers; any will do that never changes


def document(
    inventory: Mapping[str, Any],
    *,
    hashes: Mapping[str, str],
    target: str,
    revision: str,
    created: datetime,
) -> str:
    """The text of the SBOM. The same arguments give the same text.

    hashes: sha256 of the wheels that were installed, by normalized name; target: cpu or cuda; revision: the commit.
    """
    python = {normalized(one["name"]): _distribution(one, hashes) for one in inventory["distributions"]}
    others = [_system(inventory["system"]), *(_debian(one, inventory["system"]["id"]) for one in inventory["debian"])]
    version = python[OWN].version
    image = Component(name=f"glossa-{target}", version=version, type=ComponentType.CONTAINER, bom_ref="image")
    if revision:
        image.properties.add(Property(name="glossa:revision", value=revision))
    image.properties.add(Property(name="glossa:python", value=inventory["python"]))
    bom = Bom(
        components=[*python.values(), *others],
        metadata=BomMetaData(component=image, timestamp=created),
        serial_number=uuid.uuid5(_NAMESPACE, f"{target} {version} {revision} {created.isoformat()}"),
    )
    bom.register_dependency(image, [python[OWN], *others])
    for one in inventory["distributions"]:
        bom.register_dependency(python[normalized(one["name"])], list(_required(one["requires"], python)))
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def hashes_of(reports: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The sha256 of every wheel in reports of `pip install --report`, by normalized name."""
    installed = [one for report in reports for one in report["install"]]
    return {normalized(one["metadata"]["name"]): _sha256(one["download_info"]) for one in installed}


def _sha256(download: Mapping[str, Any]) -> str:
    """Of a wheel from a folder, which is still there, pip reports no hash."""
    if hashes := download["archive_info"].get("hashes"):
        return str(hashes["sha256"])
    address = urlsplit(download["url"])
    assert address.scheme == "file", download["url"]
    return hashlib.sha256(Path(unquote(address.path)).read_bytes()).hexdigest()


def normalized(name: str) -> str:
    """A distribution's name as package URLs have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution(found: Mapping[str, Any], hashes: Mapping[str, str]) -> Component:
    name, version = normalized(found["name"]), found["version"]
    sha256 = hashes.get(name)
    return Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION if name == OWN else ComponentType.LIBRARY,
        bom_ref=f"pypi/{name}@{version}",
        description=found["summary"],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
        licenses=[LicenseFactory().make_from_string(found["license"])] if found["license"] else [],
        purl=PackageURL("pypi", name=name, version=version),
    )


def _debian(found: Mapping[str, str], system: str) -> Component:
    name, version, arch = found["name"], found["version"], found["arch"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"deb/{name}@{version}/{arch}",
        purl=PackageURL("deb", namespace=system, name=name, version=version, qualifiers={"arch": arch}),
    )


def _system(found: Mapping[str, str]) -> Component:
    return Component(
        name=found["id"],
        version=found["version"],
        description=found["name"],
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="system",
    )


def _required(requirements: Sequence[str], installed: Mapping[str, Component]) -> Iterator[Component]:
    """The installed distributions that requirements name outside of extras."""
    for requirement in requirements:
        name, _, condition = requirement.partition(";")
        found = re.match(r"[\w.-]+", name)
        assert found, requirement
        if "extra ==" not in condition and normalized(found[0]) in installed:
            yield installed[normalized(found[0])]
