"""Bundles of two languages: a tiny one whose manifest names others, and models of the edge that have no engines."""

import dataclasses
import shutil

from tests.edge import TRANSLATION
from tests.sealed_manifest import read_manifest, write_manifest


def between(bundle, out, source, target, **changes):
    """A copy of a bundle that translates between these languages, by its manifest."""
    shutil.copytree(bundle, out)
    manifest = read_manifest(bundle) | {"source_language": source, "target_language": target} | changes
    write_manifest(out, manifest)
    return out


def model(name, source="", target="", **changes):
    """A model without engines that translates between two languages."""
    manifest = dataclasses.replace(TRANSLATION.manifest, source_language=source, target_language=target, **changes)
    return dataclasses.replace(TRANSLATION, name=name, manifest=manifest, version="")
