"""PyTorch's ONNX exporter: a graph's module → the unoptimized ONNX graph. `graph_checks` checks its structure."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import warnings
from collections.abc import Iterator

import torch
from onnx import ModelProto

from export.graphs.signature import Signature

OPSET = 23


def trace(signature: Signature) -> ModelProto:
    """Return the graph of a module as torch's exporter creates it."""
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            signature.module.eval(),
            signature.arguments,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=signature.dynamic_axes,
            input_names=signature.inputs,
            output_names=signature.outputs,
            verbose=False,
        )
    assert program is not None  # only the previous exporter returned None
    proto: ModelProto = program.model_proto
    return proto


def versions() -> dict[str, str]:
    """Return the versions of the packages that shape the graphs."""
    result = {"opset": str(OPSET)}
    for name in ("glossa", "torch", "onnx", "onnxscript", "onnxruntime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # glossa also runs from a source tree
            result[name] = importlib.metadata.version(name)
    return result


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Suppress the exporter's own messages, which do not concern the model."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # "torchvision is not installed", once per export
    try:
        with warnings.catch_warnings():
            # An axis shared by several inputs has one name in the graph, as intended.
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used", category=UserWarning)
            # The exporter copies an internal structure whose copying torch has deprecated.
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            yield
    finally:
        registry.setLevel(level)
