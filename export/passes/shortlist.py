"""Graphs for requests that restrict the vocabulary: `project_shortlist`, `shortlist_logprobs`, and the additional input
and output of `decode` that they need.

The output projection over the full vocabulary is 40 % of a step of a small model, or of a step with a vocabulary of
32,000. Rows with a shortlist of a few hundred tokens keep the corresponding projection columns beside their caches and
multiply only by these. Each row uses its own columns, so a response does not depend on the shortlists of other rows.
(With 64 rows, a single product over the union of all shortlists would compute mostly logits of other rows' tokens.)

Quantized schemes read integers of six bits and a sign, like all integer products (`export.passes.quantize`). The kernel
for signed weights takes a third of the time of the kernels for unsigned weights and for float32: 16 rows of 256 tokens,
d256, on a Zen 3 core take 54, 147 and 120 microseconds, 64 rows 166, 635 and 1,645.

Shapes: B rows, W shortlist tokens, M width of a state, V vocabulary, N best tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, parser

from export.bundle.manifest import Role, StateSpec
from export.passes.integer_weights import INT8_MAX, symmetric_columns
from export.passes.optimize import makers_of
from export.passes.quantize_products import ROW_ZERO

Array = np.ndarray[Any, Any]

OPSET, IR_VERSION = 23, 10
NOWHERE = float("-inf")


def select_rows(decode: ModelProto, weight_VM: Array) -> ModelProto:
    """Restrict the logits of `decode` to some rows, and add the input states of the output projection for all rows.

    asked int64 (A,), A >= 0: row indices; logits become (A, V). states float32 (B, M). weight_VM: of the output
    projection.
    """
    graph = decode.graph
    makers = makers_of(graph)
    head = makers["logits"]
    while head.op_type not in ("MatMul", "Gemm"):  # skips a bias, or the cast from float16 to float32
        head = makers[head.input[0]]
    state, head.input[0] = head.input[0], "states.asked"
    index = list(graph.node).index(head)
    graph.node.insert(index, _node("Gather", [state, "asked"], "states.asked", axis=0))
    graph.node.insert(index, _node("Cast", [state], "states", to=TensorProto.FLOAT))
    graph.input.append(_value("asked", np.int64, ("asked",)))
    graph.output.append(_value("states", np.float32, ("batch", weight_VM.shape[1])))
    logits = next(value for value in graph.output if value.name == "logits")
    logits.type.tensor_type.shape.dim[0].dim_param = "asked"
    return decode


def shortlist_graphs(weight_VM: Array, bias_V: Array | None, *, is_quantized: bool) -> dict[Role, ModelProto]:
    """Return `project_shortlist` and `shortlist_logprobs` for an output projection.

    They compute in float32, float16 or, from float32 weights, quantized.
    """
    kept = _kept(weight_VM, bias_V, is_quantized=is_quantized)
    return {"project_shortlist": _projection_graph(kept), "shortlist_logprobs": _logprobs_graph(kept)}


def shortlist_states(weight_VM: Array, bias_V: Array | None, *, is_quantized: bool) -> tuple[StateSpec, ...]:
    """Return the specs of the `project_shortlist` outputs, which a runner keeps beside a row's caches."""
    kept = _kept(weight_VM[:1], None if bias_V is None else bias_V[:1], is_quantized=is_quantized)
    ids = StateSpec(name="word_ids", kind="shortlist", dtype="int64", shape=("batch", "words"))
    return ids, *(
        StateSpec(name=name, kind="shortlist", dtype=table.dtype.name, shape=_axes(table))
        for name, table in kept.items()
    )


def _kept(weight_VM: Array, bias_V: Array | None, *, is_quantized: bool) -> dict[str, Array]:
    """Return tables with one row per vocabulary token, by the name of the `project_shortlist` output.

    word_weight (V, M). Quantized: int8, with word_scale float32 (V,), the step of a token divided by INT8_MAX, and
    word_sum int32 (V,), the sum of its integers times ROW_ZERO. word_bias float32 (V,), if there is one.
    """
    kept = {"word_weight": weight_VM}
    if is_quantized:
        integers_MV, scale_V = symmetric_columns(weight_VM.T)
        sum_V = ROW_ZERO * integers_MV.sum(0, dtype=np.int32)
        kept = {"word_weight": integers_MV.T, "word_scale": scale_V / np.float32(INT8_MAX), "word_sum": sum_V}
    return kept if bias_V is None else {**kept, "word_bias": bias_V.astype(np.float32)}


def _axes(table: Array) -> tuple[int | str, ...]:
    return ("batch", table.shape[1], "words") if table.ndim == 2 else ("batch", "words")


def _projection_graph(kept: Mapping[str, Array]) -> ModelProto:
    """The graph `project_shortlist`: token ids → the tensors kept for them.

    ids int64 (B, W); word_ids: a copy, kept too. word_weight (B, M, W), others (B, W): see `_kept`.
    """
    nodes = """
        word_ids = Identity (ids)
        "word_weight.rows" = Gather <axis = 0> ("word_weight.table", ids)
        word_weight = Transpose <perm = [0, 2, 1]> ("word_weight.rows")
    """
    nodes += "".join(f'{name} = Gather <axis = 0> ("{name}.table", ids) ' for name in kept if name != "word_weight")
    outputs = f"int64[batch, words] word_ids, {_declared(kept)}"
    tables = {f"{name}.table": table for name, table in kept.items()}
    return _graph("project_shortlist", "int64[batch, words] ids", outputs, nodes, tables)


# Cast <to = 1> is to float32. word_weight is float16 on GPUs, which accumulate in sufficient precision.
FLOAT_LOGITS = """
    narrow = CastLike (states, word_weight)
    apart = Unsqueeze (narrow, axis)
    products = MatMul (apart, word_weight)
    flat = Squeeze (products, axis)
    scaled = Cast <to = 1> (flat)
"""
# States become bytes that span INT8_MAX steps on either side of ROW_ZERO; the outermost step is the row's largest
# magnitude. ROW_ZERO is subtracted from the sum, because a product with a zero-point input takes twice as long.
INTEGER_LOGITS = """
    magnitudes = Abs (states)
    top = ReduceMax <keepdims = 1> (magnitudes, axis)
    shares = Div (states, top)
    bytes = QuantizeLinear (shares, unit, middle)
    apart = Unsqueeze (bytes, axis)
    sums = MatMulInteger (apart, word_weight)
    flat = Squeeze (sums, axis)
    integers = Sub (flat, word_sum)
    whole = Cast <to = 1> (integers)
    scales = Mul (word_scale, top)
    scaled = Mul (whole, scales)
"""
RANKING = """
    counts = Unsqueeze (word_counts, axis)
    is_own = Less (word_places, counts)
    logits = Where (is_own, biased, nowhere)
    logprobs = LogSoftmax <axis = -1> (logits)
    first_logits = Gather <axis = 1> (logits, first)
    first_logprobs = Gather <axis = 1> (logprobs, first)
    normaliser = Sub (first_logits, first_logprobs)
    best, places = TopK (logits, top_k)
    top_ids = GatherElements <axis = 1> (word_ids, places)
    top_logprobs = GatherElements <axis = 1> (logprobs, places)
"""


def _logprobs_graph(kept: Mapping[str, Array]) -> ModelProto:
    """The graph `shortlist_logprobs`: row state and shortlist → log-probabilities over it, and the best tokens.

    It corresponds to `logprobs`, which starts from logits. Inputs: states float32 (B, M); word_counts int32 (B,): the
    length of each row's shortlist; the entries between it and W do not matter, and an empty shortlist gives NaN;
    word_places int32 (W,): 0, 1, 2, …; the others: see `_projection_graph`.

    Outputs: logprobs float32 (B, W), -inf after the end of a row's shortlist; normaliser float32 (B,). top_ids int64
    (B, N): of equal tokens the first in the shortlist, and arbitrary ids after the shortlist is exhausted; top_logprobs
    float32 (B, N): their log-probabilities. Every row is a separate product, so its bits do not depend on other rows,
    nor on W while W is a multiple of 64.
    """
    inputs = f"""
        float[batch, {kept["word_weight"].shape[1]}] states, int64[batch, words] word_ids, {_declared(kept)},
        int32[batch] word_counts, int32[words] word_places, int64[1] top_k
    """
    outputs = """
        float[batch, words] logprobs, float[batch] normaliser,
        float[batch, top_k] top_logprobs, int64[batch, top_k] top_ids
    """
    constants = {
        "axis": np.array([1]),
        "first": np.array(0),
        "nowhere": np.array(NOWHERE, np.float32),
        "unit": np.array(1 / INT8_MAX, np.float32),
        "middle": np.array(ROW_ZERO, np.uint8),
    }
    nodes = INTEGER_LOGITS if "word_scale" in kept else FLOAT_LOGITS
    nodes += "biased = Add (scaled, word_bias)" if "word_bias" in kept else "biased = Identity (scaled)"
    return _graph("shortlist_logprobs", inputs, outputs, nodes + RANKING, constants)


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    made: NodeProto = helper.make_node(op, inputs, [output], name=output, **attributes)
    return made


def _value(name: str, dtype: Any, shape: tuple[int | str, ...]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _declared(kept: Mapping[str, Array]) -> str:
    types = {"float32": "float"}
    return ", ".join(
        f"{types.get(table.dtype.name, table.dtype.name)}[{', '.join(map(str, _axes(table)))}] {name}"
        for name, table in kept.items()
    )


def _graph(name: str, inputs: str, outputs: str, nodes: str, constants: Mapping[str, Array]) -> ModelProto:
    text = f'<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]> {name} ({inputs}) => ({outputs}) {{ {nodes} }}'
    model = parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, order="C"), name) for name, array in constants.items() if name in read
    )
    return model
