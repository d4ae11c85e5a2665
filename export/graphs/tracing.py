"""Graph signatures, and PyTorch's ONNX exporter: a signature → the unoptimized ONNX graph.

`export.graph_checks` checks the structure of traced graphs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import onnx_ir
import torch
from onnx import ModelProto
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from export.bundle.manifest import StateSpec
from export.graphs.large_weights import is_large
from export.graphs.lowering import lowered, run_promoted
from model.architectures import Model

OPSET = 23
# Example sizes of dynamic axes. They are distinct, so that the exporter merges no two axes.
SIZES = {
    "batch": 2,
    "block": 3,
    "asked": 4,
    "source": 5,
    "slots": 6,
    "places": 7,
    "capacity": 16,
    "total": 9,
    "kept": 11,
}
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

    def axis(state: StateSpec, size: int | str) -> int | str:
        """Caches that differ in their growing axis have axes of their own."""
        if size != "capacity":
            return size
        return "slots" if state.stride > 1 else "kept" if state.window else size

    return [Input(prefix + state.name, tuple(axis(state, s) for s in state.shape), dtype) for state in states]


def trace(signature: Signature, large: dict[str, np.ndarray] | None = None) -> ModelProto:
    """Return the graph of a module as torch's exporter creates it.

    large: gets the values of large matrices by their names, views of the module's as a rule; the graph then lacks them.
    """
    with _quiet_exporter(), _faster_exporter(), torch.no_grad():
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
    if large is not None:
        large |= _take_large(program.model.graph.initializers)
    proto: ModelProto = program.model_proto
    return proto


def _take_large(constants: Mapping[str, onnx_ir.Value]) -> dict[str, np.ndarray]:
    """Return the values of large matrices, which are then without."""
    taken = dict[str, np.ndarray]()
    for name, value in constants.items():
        assert value.const_value is not None, name
        array = value.const_value.numpy()
        if is_large(array):
            kind, shape = value.const_value.dtype, onnx_ir.Shape(array.shape)
            value.const_value = onnx_ir.ExternalTensor(name, None, None, kind, shape=shape, name=name)
            taken[name] = array
    return taken


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
def _faster_exporter() -> Iterator[None]:
    """Replace parts of the exporter and its optimizer, for the same graphs in less time.

    The table of operators is built once per opset, on which alone it depends, instead of once per graph: 0.8 s of the 1
    to 3 s of a small one. A program is lowered, where the exporter would run it twice more to decompose operators that
    ONNX lacks, and once to promote types: most of the time, though our models have hardly anything of both. A rewriting
    rule that compares each pair of slices is left out, as none of ours match: half of the time of a rotary model with
    30 layers. Rules are tried on the nodes of the type that their patterns end with, not on all. The cache of fake
    tensors is off: with dynamic axes, what it finds costs more than to compute it. Shapes of norms and products with a
    bias are taken from their arguments, not from the dozen operators that PyTorch derives them by; programs are not
    written as Python until one is run, and do not record which lines of ours made a node: a quarter of the time.
    """
    from onnxscript import rewriter
    from onnxscript.rewriter.pattern import RewriteRule
    from torch import _decomp as decompositions
    from torch._dynamo import config as dynamo
    from torch.fx import config as fx
    from torch.fx._lazy_graph_module import _use_lazy_graph_module
    from torch.onnx._internal.exporter import _fx_passes
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # loads the whole exporter
    from torch.onnx._internal.fx.passes.type_promotion import _TypePromotionInterpreter as TypePromotion

    shapes = {torch.ops.aten.native_layer_norm.default: _normed, torch.ops.aten.addmm.default: _biased}
    decompose = functools.partial(lowered, decompose=_fx_passes.decompose_with_registry)
    rules = tuple(rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule.name != "SlicesSplit")
    with (
        _replaced(ONNXRegistry, "from_torchlib", staticmethod(_shared(ONNXRegistry))),
        _replaced(_fx_passes, "decompose_with_registry", decompose),
        _replaced(TypePromotion, "run_node", functools.partialmethod(run_promoted, TypePromotion.run_node)),
        _replaced(RewriteRule, "try_rewrite", _tried_on_its_type(RewriteRule.try_rewrite)),
        dynamo.patch(fake_tensor_cache_enabled=False),
        _replaced(fx, "do_not_emit_stack_traces", True),
        _use_lazy_graph_module(True),
        _replaced(decompositions, "decomposition_table", {**decompositions.decomposition_table, **shapes}),
        _replaced(rewriter, "_DEFAULT_REWRITE_RULES", rules),
    ):
        yield


def _normed(rows: Tensor, shape: list[int], *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    statistics = rows.new_empty([*rows.shape[: -len(shape)], *[1] * len(shape)])
    return torch.empty_like(rows, memory_format=torch.contiguous_format), statistics, statistics


def _biased(bias: Tensor, rows: Tensor, matrix: Tensor, **_: Any) -> Tensor:
    return rows.new_empty((rows.shape[0], matrix.shape[1]))


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a class or a module another value for a while."""
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _tried_on_its_type(try_rewrite: Callable[..., Any]) -> Callable[..., Any]:
    def tried(rule: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        ends = rule._target_pattern.output_nodes
        operator = ends[0].op_identifier() if len(ends) == 1 else None  # None: of any type
        if operator is not None and operator[1] != node.op_type:
            return None
        return try_rewrite(rule, model, graph, node, **options)

    return tried


@functools.cache
def _shared(registry: Any) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=2)(registry.from_torchlib)  # OPSET, and that of `Attention`
