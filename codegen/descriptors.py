"""Writes deploy/envoy/glossa.binpb, by which a gateway converts JSON: the public API with its `google.api.http` paths.

The set also holds google.rpc: a gateway that does not know these messages sends errors without a body. `python -m
codegen.descriptors` rewrites the file; with --check it changes nothing, and fails if the file is out of date. The stubs
are the source, so they come first: `make protos`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2, status_pb2

from glossa.v1 import glossa_pb2

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTORS = ROOT / "deploy/envoy/glossa.binpb"
NEEDED: tuple[FileDescriptor, ...] = tuple(module.DESCRIPTOR for module in (glossa_pb2, status_pb2, error_details_pb2))


def descriptor_set() -> bytes:
    """The needed files, each after those that it imports, as a serialized google.protobuf.FileDescriptorSet."""
    found = dict[str, FileDescriptor]()
    for file in NEEDED:
        _add(file, found)
    result = FileDescriptorSet()
    for file in found.values():
        file.CopyToProto(result.file.add())
    return result.SerializeToString(deterministic=True)


def _add(file: FileDescriptor, found: dict[str, FileDescriptor]) -> None:
    for imported in file.dependencies:
        _add(imported, found)
    found.setdefault(file.name, file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite the file if it is out of date, or with --check fail then."""
    parser = argparse.ArgumentParser(description="Write the descriptor set that gateways convert JSON by.")
    parser.add_argument("--check", action="store_true", help="fail if the file is out of date, and change nothing")
    check, content = parser.parse_args(arguments).check, descriptor_set()
    if DESCRIPTORS.exists() and DESCRIPTORS.read_bytes() == content:
        return
    if check:
        raise SystemExit(f"{DESCRIPTORS.relative_to(ROOT)} is out of date; run: make descriptors")
    DESCRIPTORS.parent.mkdir(exist_ok=True)
    DESCRIPTORS.write_bytes(content)
    print(f"wrote {DESCRIPTORS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
