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
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from export.manifest import Role, StateSpec
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
    place = list(graph.node).index(head)
    graph.node.insert(place, _node("Gather", [state, "asked"], "states.asked", axis=0))
    graph.node.insert(place, _node("Cast", [state], "states", to=TensorProto.FLOAT))
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
    nodes, outputs = [_node("Identity", ["ids"], "word_ids")], [_value("word_ids", np.int64, ("batch", "words"))]
    for name, table in kept.items():
        if table.ndim == 1:
            nodes.append(_node("Gather", [f"{name}.table", "ids"], name, axis=0))
        else:
            nodes.append(_node("Gather", [f"{name}.table", "ids"], f"{name}.rows", axis=0))
            nodes.append(_node("Transpose", [f"{name}.rows"], name, perm=[0, 2, 1]))
        outputs.append(_value(name, table.dtype, _axes(table)))
    tables = {f"{name}.table": table for name, table in kept.items()}
    return _model("project_shortlist", nodes, [_value("ids", np.int64, ("batch", "words"))], outputs, tables)


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
    width = kept["word_weight"].shape[1]
    inputs = [
        _value("states", np.float32, ("batch", width)),
        _value("word_ids", np.int64, ("batch", "words")),
        *(_value(name, table.dtype, _axes(table)) for name, table in kept.items()),
        _value("word_counts", np.int32, ("batch",)),
        _value("word_places", np.int32, ("words",)),
        _value("top_k", np.int64, (1,)),
    ]
    constants = {
        "axis.1": np.array([1]),
        "first": np.array(0),
        "nowhere": np.array(NOWHERE, np.float32),
        "unit": np.array(1 / INT8_MAX, np.float32),
        "middle": np.array(ROW_ZERO, np.uint8),
    }
    nodes = _integer_logits() if "word_scale" in kept else _float_logits(kept["word_weight"].dtype)
    if "word_bias" in kept:
        nodes.append(_node("Add", [nodes[-1].output[0], "word_bias"], "biased"))
    nodes += [
        _node("Unsqueeze", ["word_counts", "axis.1"], "counts"),
        _node("Less", ["word_places", "counts"], "is_own"),
        _node("Where", ["is_own", nodes[-1].output[0], "nowhere"], "logits"),
        _node("LogSoftmax", ["logits"], "logprobs", axis=-1),
        _node("Gather", ["logits", "first"], "logits.first", axis=1),
        _node("Gather", ["logprobs", "first"], "logprobs.first", axis=1),
        _node("Sub", ["logits.first", "logprobs.first"], "normaliser"),
        helper.make_node("TopK", ["logits", "top_k"], ["best", "places.best"], name="best"),
        _node("GatherElements", ["word_ids", "places.best"], "top_ids", axis=1),
        _node("GatherElements", ["logprobs", "places.best"], "top_logprobs", axis=1),
    ]
    outputs = [
        _value("logprobs", np.float32, ("batch", "words")),
        _value("normaliser", np.float32, ("batch",)),
        _value("top_logprobs", np.float32, ("batch", "top_k")),
        _value("top_ids", np.int64, ("batch", "top_k")),
    ]
    read = {name for node in nodes for name in node.input}
    return _model(
        "shortlist_logprobs", nodes, inputs, outputs, {k: value for k, value in constants.items() if k in read}
    )


def _float_logits(dtype: np.dtype[Any]) -> list[NodeProto]:
    """word_weight is float16 on GPUs, which accumulate in sufficient precision."""
    to = helper.np_dtype_to_tensor_dtype(dtype)
    return [
        _node("Cast", ["states"], "states.narrow", to=to),
        _node("Unsqueeze", ["states.narrow", "axis.1"], "states.apart"),
        _node("MatMul", ["states.apart", "word_weight"], "products"),
        _node("Squeeze", ["products", "axis.1"], "products.flat"),
        _node("Cast", ["products.flat"], "scaled", to=TensorProto.FLOAT),
    ]


def _integer_logits() -> list[NodeProto]:
    """Quantize the states to bytes and compute the logits as an integer product.

    The bytes span INT8_MAX steps on either side of ROW_ZERO; the outermost step is the row's largest magnitude. The
    graph subtracts ROW_ZERO from the sum, because a product with a zero-point input takes twice as long.
    """
    return [
        _node("Abs", ["states"], "magnitudes"),
        _node("ReduceMax", ["magnitudes", "axis.1"], "top", keepdims=1),
        _node("Div", ["states", "top"], "shares"),
        _node("QuantizeLinear", ["shares", "unit", "middle"], "bytes"),
        _node("Unsqueeze", ["bytes", "axis.1"], "bytes.apart"),
        _node("MatMulInteger", ["bytes.apart", "word_weight"], "sums"),
        _node("Squeeze", ["sums", "axis.1"], "sums.flat"),
        _node("Sub", ["sums.flat", "word_sum"], "integers"),
        _node("Cast", ["integers"], "integers.float", to=TensorProto.FLOAT),
        _node("Mul", ["word_scale", "top"], "scales"),
        _node("Mul", ["integers.float", "scales"], "scaled"),
    ]


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    made: NodeProto = helper.make_node(op, inputs, [output], name=output, **attributes)
    return made


def _value(name: str, dtype: Any, shape: tuple[int | str, ...]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _model(
    name: str,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    constants: Mapping[str, Array],
) -> ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array, order="C"), key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
