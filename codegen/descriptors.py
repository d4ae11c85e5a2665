"""Writes deploy/envoy/glossa.binpb, by which a gateway converts JSON: the public API with its `google.api.http` paths.

The set also holds google.rpc: a gateway that does not know these messages sends errors without a body. `python -m
codegen.descriptors` rewrites the file; with --check it changes nothing, and fails if the file is out of date. The stubs
are the source, so they come first: `make protos`.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import error_details_pb2, status_pb2

from codegen.generated_files import ROOT, update
from glossa.v1 import glossa_pb2

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
    description = "Write the descriptor set that gateways convert JSON by."
    update({DESCRIPTORS: descriptor_set()}, arguments, target="descriptors", description=description)


if __name__ == "__main__":
    main()
