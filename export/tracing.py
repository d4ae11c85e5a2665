"""PyTorch's ONNX exporter: a graph's module → the unoptimised ONNX graph. What it must contain: `graph_checks`."""

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
    """The graph of a module as torch's exporter makes it."""
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
    assert program is not None  # it is None only for the exporter that preceded this one
    proto: ModelProto = program.model_proto
    return proto


def versions() -> dict[str, str]:
    """Of whatever shaped the graphs."""
    result = {"opset": str(OPSET)}
    for name in ("glossa", "torch", "onnx", "onnxscript", "onnxruntime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # glossa runs from a source tree too
            result[name] = importlib.metadata.version(name)
    return result


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without what the exporter says of itself: nothing of it concerns the model."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # "torchvision is not installed", once per export
    try:
        with warnings.catch_warnings():
            # One axis of several inputs has one name in the graph, which is what is wanted.
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used", category=UserWarning)
            # The exporter copies a structure of its own whose copying torch has deprecated.
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            yield
    finally:
        registry.setLevel(level)
