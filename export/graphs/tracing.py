"""Graph signatures, and PyTorch's ONNX exporter: a signature → the unoptimized ONNX graph.

`export.graph_checks` checks the structure of traced graphs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from onnx import ModelProto
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from export.bundle.manifest import StateSpec
from export.graphs.lowering import lowered
from model.architectures import Model

OPSET = 23
# Example sizes of dynamic axes. They are distinct, so that the exporter merges no two axes.
SIZES = {"batch": 2, "block": 3, "asked": 4, "source": 5, "slots": 6, "places": 7, "capacity": 16, "total": 9}
AXES = {name: torch.export.Dim(name) for name in SIZES}
M = TypeVar("M", bound=Model)


class ModelGraph(nn.Module, Generic[M]):
    """A graph of a model: a module without weights of its own."""

    def __init__(self, model: M) -> None:
        super().__init__()
        self.model = model


@dataclass(frozen=True)
class Input:
    """An input tensor of a graph. Axes named in `shape` are dynamic."""

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype = torch.int64

    @property
    def example(self) -> Tensor:
        return torch.ones([SIZES[size] if isinstance(size, str) else size for size in self.shape], dtype=self.dtype)

    @property
    def dynamic_axes(self) -> dict[int, Any]:
        return {axis: AXES[size] for axis, size in enumerate(self.shape) if isinstance(size, str)}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a graph is called, and the names of its tensors.

    arguments: those of the module's `forward`, each an `Input` or a list of arguments. finish: a final transformation
    of the traced graph after all passes; `inputs` and `outputs` then name the tensors before it. opset: the version of
    ONNX of the traced graph.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    outputs: tuple[str, ...]
    finish: Callable[[ModelProto], ModelProto] | None = None
    opset: int = OPSET

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs, in order."""
        return tuple(argument.name for argument in pytree.tree_leaves(self.arguments))


SOURCE = Input("source", ("batch", "source"))
SOURCE_LENGTHS = Input("source_lengths", ("batch",), torch.int32)


def state_inputs(states: Iterable[StateSpec], dtype: torch.dtype, prefix: str = "") -> list[Input]:
    """Return the inputs PREFIX + NAME that hold these states in a graph of an unquantized model."""
    return [
        Input(
            prefix + state.name,
            tuple("slots" if state.stride > 1 and s == "capacity" else s for s in state.shape),
            dtype,
        )
        for state in states
    ]


def trace(signature: Signature) -> ModelProto:
    """Return the graph of a module as torch's exporter creates it."""
    with _quiet_exporter(), _shared_operators(), _lowered_in_place(), _linear_rewriting(), torch.no_grad():
        program = torch.onnx.export(
            signature.module.eval(),
            pytree.tree_map(lambda argument: argument.example, signature.arguments),
            dynamo=True,
            opset_version=signature.opset,
            dynamic_shapes=pytree.tree_map(lambda argument: argument.dynamic_axes, signature.arguments),
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


@contextlib.contextmanager
def _shared_operators() -> Iterator[None]:
    """Let the exporter build its table of operators once per opset instead of once per graph.

    The table depends on the opset alone and is only read. Building it is 0.8 s of the 1 to 3 s of a small graph.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # loads the whole exporter

    shared, original = _shared(ONNXRegistry), ONNXRegistry.__dict__["from_torchlib"]
    ONNXRegistry.from_torchlib = staticmethod(shared)  # type: ignore[method-assign]
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _lowered_in_place() -> Iterator[None]:
    """Let the exporter trace a program once. It would run it twice more to decompose operators that ONNX lacks, which
    is half of the time of a graph, though our models have hardly any."""
    from torch.onnx._internal.exporter import _fx_passes

    original = _fx_passes.decompose_with_registry
    _fx_passes.decompose_with_registry = functools.partial(lowered, decompose=original)
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = original


@contextlib.contextmanager
def _linear_rewriting() -> Iterator[None]:
    """Leave out a rule of the exporter's optimizer that compares each pair of slices, of which none of ours match: half
    of the time of a rotary model with 30 layers."""
    from onnxscript import rewriter

    rules = rewriter._DEFAULT_REWRITE_RULES
    rewriter._DEFAULT_REWRITE_RULES = tuple(rule for rule in rules if rule.name != "SlicesSplit")
    try:
        yield
    finally:
        rewriter._DEFAULT_REWRITE_RULES = rules


@functools.cache
def _shared(registry: Any) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=2)(registry.from_torchlib)  # OPSET, and that of `Attention`
