"""Rules for the graphs of a bundle, checked before a runtime sees them: only the operators, attributes and tensors that
exports write.

The table of operators is what exports of every architecture, preset, precision and family of imported models contain; a
test compares them. Loops, conditions and functions are not among them, and the one operator with a graph inside, Scan,
ends with its input. No node computes from constants alone, so that opening a graph computes nothing: what a node costs
depends on a request, and requests are limited; `graph_sizes` bounds what constants make of that. Weights lie in the
file of the graph or in FILE.data beside it, and have as many bytes as their shape says. This module uses the standard
library only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping

from export.bundle.graph_sizes import size_problems
from export.bundle.manifest import GraphSpec, Manifest, Variant
from export.bundle.manifest_fields import MAX_SIZE, SchemaError, shown
from export.bundle.onnx_reader import Message, WireFormatError, read_model

MAX_GRAPH_BYTES = 1 << 23  # without weights, which lie beside a graph if they have more than 1 MiB
MAX_AXES = 8
MAX_WINDOW = 1 << 10  # of a convolution: its kernel, steps and padding
MAX_INLINE_INTS = 1 << 10  # of an integer tensor whose values are checked: shapes, axes, indices
LONGEST = (1 << 63) - 1  # as the end of a slice or shape: as far as it goes
Values = dict[str, list[int] | None]  # by name: the shape of a constant, None of what is computed
OPSETS = {"": range(18, 25), "com.microsoft": range(1, 2)}
IR_VERSIONS = range(8, 12)
DTYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10}
ITEM_BITS = {1: 32, 2: 8, 3: 8, 6: 32, 7: 64, 9: 8, 10: 16}  # of the types that exports use: TensorProto.DataType
FLOAT, INT, STRING, TENSOR, GRAPH, INTS = 1, 2, 3, 4, 5, 7  # AttributeProto.AttributeType
VALUES = {FLOAT: "float", INT: "int", STRING: "string", TENSOR: "tensor", GRAPH: "graph", INTS: "ints"}

_NONE: Mapping[str, int] = {}
_AXIS = {"axis": INT}
_NORM = {"axis": INT, "epsilon": FLOAT, "stash_type": INT}
_PLAIN = """
Abs Add And CastLike Clip CumSum DequantizeLinear Div Equal Expand GatherND GreaterOrEqual Identity Less Log
MatMul MatMulInteger Mul Neg NonZero Not QuantizeLinear Range Relu Sigmoid Slice Squeeze Sub Tanh
Unsqueeze Where
"""  # operators of ONNX without attributes
OPERATORS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "": {
        **dict.fromkeys(_PLAIN.split(), _NONE),
        "Attention": {"kv_num_heads": INT, "q_num_heads": INT, "scale": FLOAT},
        "Cast": {"to": INT},
        "Concat": _AXIS,
        "ConstantOfShape": {"value": TENSOR},
        "Conv": {
            "auto_pad": STRING,
            "dilations": INTS,
            "group": INT,
            "kernel_shape": INTS,
            "pads": INTS,
            "strides": INTS,
        },
        "GRU": {"direction": STRING, "hidden_size": INT, "linear_before_reset": INT},
        "Gather": _AXIS,
        "GatherElements": _AXIS,
        "Gelu": {"approximate": STRING},
        "Gemm": {"alpha": FLOAT, "beta": FLOAT, "transA": INT, "transB": INT},
        "LSTM": {"direction": STRING, "hidden_size": INT},
        "LayerNormalization": _NORM,
        "LeakyRelu": {"alpha": FLOAT},
        "LogSoftmax": _AXIS,
        "Mod": {"fmod": INT},
        "RMSNormalization": _NORM,
        "ReduceMax": {"keepdims": INT},
        "ReduceSum": {"keepdims": INT, "noop_with_empty_axes": INT},
        "Reshape": {"allowzero": INT},
        "Scan": {"body": GRAPH, "num_scan_inputs": INT, "scan_input_axes": INTS, "scan_output_axes": INTS},
        "ScatterElements": {"axis": INT, "reduction": STRING},
        "ScatterND": {"reduction": STRING},
        "Shape": {"end": INT, "start": INT},
        "Softmax": _AXIS,
        "Split": {"axis": INT, "num_outputs": INT},
        "TensorScatter": _AXIS,
        "TopK": {"axis": INT, "largest": INT, "sorted": INT},
        "Transpose": {"perm": INTS},
        "Trilu": {"upper": INT},
    },
    "com.microsoft": {
        "GroupQueryAttention": {
            "causal": INT,
            "do_rotary": INT,
            "k_quant_type": STRING,
            "kv_cache_bit_width": INT,
            "kv_num_heads": INT,
            "local_window_size": INT,
            "num_heads": INT,
            "scale": FLOAT,
            "softcap": FLOAT,
            "v_quant_type": STRING,
        },
        "MatMulIntegerToFloat": _NONE,
        "MatMulNBits": {"K": INT, "N": INT, "accuracy_level": INT, "bits": INT, "block_size": INT},
        "SkipLayerNormalization": {"epsilon": FLOAT},
        "SkipSimplifiedLayerNormalization": {"epsilon": FLOAT},
    },
}
EARLIER_OPERATORS: Mapping[str, Mapping[str, int]] = {"Min": _NONE}  # of ONNX, in exports of release 0.2.0 and before


def check_graph(data: bytes, manifest: Manifest, variant: Variant, spec: GraphSpec) -> None:
    """Check the file of a graph. Raises SchemaError for its first problem."""
    try:
        model = read_model(data)
    except WireFormatError as error:
        raise SchemaError(f"is not a graph: it {error}") from None
    weights = f"{spec.file}.data"
    room = manifest.files[weights].bytes if weights in manifest.files else 0
    rules = _Rules(weights.rpartition("/")[2], room)
    graph = model.get("graph", {})
    for problem in (*_versions(model), *_interface(graph, variant, spec), *rules.problems(graph, {})):
        raise SchemaError(f"is not a graph that exports write: {problem}")


def _versions(model: Message) -> Iterator[str]:
    if model.get("ir_version") not in IR_VERSIONS:
        yield f"its IR version must be of {IR_VERSIONS.start}..{IR_VERSIONS.stop - 1}, got {model.get('ir_version')}"
    for entry in model.get("opset_import", []):
        domain, version = entry.get("domain", ""), entry.get("version")
        if version not in OPSETS.get(domain, ()):
            yield f"it needs operators of version {version} of {shown(domain)}, and {_listed(OPSETS)} are known"


def _listed(opsets: Mapping[str, range]) -> str:
    return ", ".join(f"{found.start}..{found.stop - 1} of {name or 'ONNX'}" for name, found in opsets.items())


def _interface(graph: Message, variant: Variant, spec: GraphSpec) -> Iterator[str]:
    """Inputs and outputs as the manifest names them, and states of its types and sizes."""
    states = {f"{prefix}{state.name}": state for state in variant.states for prefix in ("", "past.", "present.")}
    for kind, expected in (("input", spec.inputs), ("output", spec.outputs)):
        values = graph.get(kind, [])
        names = tuple(value.get("name", "") for value in values)
        if names != expected:
            yield f"its {kind}s must be {shown(expected)}, got {shown(names)}"
        for name, value in zip(names, values, strict=True):
            tensor = value.get("type", {}).get("tensor_type", {})
            dims = [dim.get("size", dim.get("symbol")) for dim in tensor.get("shape", {}).get("dims", [])]
            if len(dims) > MAX_AXES or any(isinstance(size, int) and not 0 <= size <= MAX_SIZE for size in dims):
                yield f"{shown(name)} must have at most {MAX_AXES} axes of at most {MAX_SIZE}, got {shown(dims)}"
            if (state := states.get(name)) is not None and kind == "input":
                sizes = [size for size in dims if isinstance(size, int)]
                wanted = [size for size in state.shape if isinstance(size, int)]
                if tensor.get("elem_type") != DTYPES[state.dtype] or len(dims) != len(state.shape) or sizes != wanted:
                    yield f"{shown(name)} must be {state.dtype} {state.shape}, got {shown(dims)}"


class _Rules:
    """The rules for the nodes and tensors of one file. weights: the only file that tensors may lie in besides it; room:
    its bytes."""

    def __init__(self, weights: str, room: int) -> None:
        self._weights, self._room = weights, room
        self._origins: dict[str, list[int] | Message | None] = {}

    def problems(self, graph: Message, outer: Values) -> Iterator[str]:
        """outer: the values of the graph around this one."""
        values = dict(outer)
        for tensor in graph.get("initializer", []):
            yield from _define(values, [tensor.get("name", "")], tensor.get("dims", []))
            for problem in self._tensor(tensor):
                yield f"the tensor {shown(tensor.get('name', ''))} {problem}"
            is_read = tensor.get("data_type") == DTYPES["int64"] and "external_data" not in tensor
            self._origins[tensor.get("name", "")] = _integers(tensor) if is_read else None
        inputs = [value.get("name", "") for value in graph.get("input", [])]
        yield from _define(values, inputs, None)
        self._origins.update(dict.fromkeys(inputs))
        nodes = graph.get("node", [])
        for node in nodes:  # in any order: the runtime sorts them
            yield from _define(values, filter(None, node.get("output", [])), [] if _is_number(node, values) else None)
            self._origins.update(dict.fromkeys(node.get("output", []), node))
        for node in nodes:
            for problem in self._node(node, values):
                yield f"the node {shown(node.get('name', ''))} ({_operator(node):.80}) {problem}"

    def _node(self, node: Message, values: Values) -> Iterator[str]:
        domain, operator = node.get("domain", ""), node.get("op_type", "")
        allowed = OPERATORS.get(domain, {}).get(operator)
        if allowed is None and not domain:
            allowed = EARLIER_OPERATORS.get(operator)
        if allowed is None:
            yield "is of no operator that exports use"
            return
        read = list(filter(None, node.get("input", [])))
        if unknown := [name for name in read if name not in values]:
            yield f"reads {shown(unknown[0])}, which nothing writes"
        elif all(values[name] is not None for name in read) and not _is_number(node, values):
            yield "computes from constants alone"
        yield from size_problems(node, self._origins)
        seen = set()
        for attribute in node.get("attribute", []):
            name, kind = attribute.get("name", ""), attribute.get("type")
            if name in seen or allowed.get(name, 0) != kind or not attribute.keys() <= {"name", "type", VALUES[kind]}:
                yield f"has an attribute {shown(name)} of type {kind} that exports do not give it"
                continue
            seen.add(name)
            for problem in self._attribute(attribute, VALUES[kind], values):
                yield f"has an attribute {name} that {problem}"

    def _attribute(self, attribute: Message, field: str, values: Values) -> Iterator[str]:
        match attribute.get(field):
            case int() as number if not -MAX_SIZE <= number <= MAX_SIZE and number != LONGEST:
                yield f"must be of {-MAX_SIZE}..{MAX_SIZE}, got {number}"
            case float() as number if not math.isfinite(number):
                yield f"must be a number, got {number}"
            case str() as text if len(text) > 64:
                yield f"must have at most 64 characters, got {len(text)}"
            case list() as numbers if len(numbers) > MAX_AXES or any(abs(number) > MAX_WINDOW for number in numbers):
                yield f"must have at most {MAX_AXES} numbers of at most {MAX_WINDOW}, got {shown(numbers)}"
            case dict() as inner if field == "tensor":
                if inner.get("dims", []) not in ([], [1]):
                    yield f"must be a single number, got one of shape {shown(inner.get('dims'))}"
                yield from self._tensor(inner)
            case dict() as inner:
                if any(_operator(node) == "Scan" for node in inner.get("node", [])):
                    yield "must not have a graph inside its own"
                yield from self.problems(inner, values)

    def _tensor(self, tensor: Message) -> Iterator[str]:
        dims, bits = tensor.get("dims", []), ITEM_BITS.get(tensor.get("data_type", 0))
        if bits is None:
            yield f"is of a type that exports do not use, {tensor.get('data_type')}"
            return
        if len(dims) > MAX_AXES or not all(0 <= size <= MAX_SIZE for size in dims):
            yield f"must have at most {MAX_AXES} axes of at most {MAX_SIZE}, got {shown(dims)}"
            return
        size = math.prod(dims) * bits // 8
        if "external_data" in tensor or tensor.get("data_location"):
            yield from self._external(tensor, size)
            return
        numbers = [number for kind in ("float", "int32", "int64") for number in tensor.get(f"{kind}_data", [])]
        actual = len(tensor["raw_data"]) if "raw_data" in tensor else len(numbers) * bits // 8
        if actual != size or ("raw_data" in tensor and numbers):
            yield f"must have {size} bytes for its shape {dims}, got {actual}"
        elif tensor["data_type"] == 7:
            numbers = _integers(tensor)
            if len(numbers) > MAX_INLINE_INTS or not all(abs(n) <= MAX_SIZE or n == LONGEST for n in numbers):
                yield f"must have at most {MAX_INLINE_INTS} integers of at most {MAX_SIZE}, got {shown(numbers)}"

    def _external(self, tensor: Message, size: int) -> Iterator[str]:
        entries = tensor.get("external_data", [])
        reference = {entry.get("key", ""): entry.get("value", "") for entry in entries}
        if len(reference) < len(entries) or set(reference) - {"location", "offset", "length"} or "raw_data" in tensor:
            yield f"must lie at a location, an offset and a length, got {shown(reference)}"
        elif reference.get("location") != self._weights or not self._room:
            yield f"must lie in {self._weights} beside the graph, got {shown(reference.get('location'))}"
        else:
            numbers = [reference.get(key, "0") for key in ("offset", "length")]
            if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
                yield f"must lie at an offset and a length, got {shown(reference)}"
            elif int(numbers[1]) != size or int(numbers[0]) + size > self._room:
                yield f"must have {size} bytes within {self._room}, got {numbers[1]} at {numbers[0]}"


def _is_number(node: Message, values: Values) -> bool:
    """Whether a node is a single number, which exports of recurrent models write as a tensor without axes."""
    shapes = [values.get(name) for name in node.get("input", [])]
    return _operator(node) == "ConstantOfShape" and shapes == [[0]]


def _integers(tensor: Message) -> list[int]:
    """The values of an int64 tensor in the file of its graph."""
    if "raw_data" in tensor:
        return [number for (number,) in struct.iter_unpack("<q", tensor["raw_data"])]
    return list(tensor.get("int64_data", []))


def _define(values: Values, names: Iterable[str], shape: list[int] | None) -> Iterator[str]:
    for name in names:
        if name in values:
            yield f"{shown(name)} is there twice"
        values[name] = shape


def _operator(node: Message) -> str:
    return ".".join(filter(None, [node.get("domain", ""), node.get("op_type", "")]))
