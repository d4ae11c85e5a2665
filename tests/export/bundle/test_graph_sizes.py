"""Nodes of a computed shape: constants may make little of what a request sizes. No graph here is ever opened."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.bundle.graph_sizes import MAX_ITEMS, MAX_VALUES
from export.bundle.manifest_fields import SchemaError
from tests.export.bundle.test_graph_rules import add, changed, check, external

node = helper.make_node
SHAPE = node("Shape", ["source"], ["shape"])
BATCH = node("Gather", ["shape", "zero"], ["batch"])
SIZED = node("Concat", ["batch", "wide"], ["sizes"], axis=0)
NUMBERS = {"zero": np.array([0]), "one": np.array([1]), "wide": np.array([MAX_ITEMS])}
MAKERS = {
    "ConstantOfShape": node("ConstantOfShape", ["sizes"], ["made"]),
    "Expand": node("Expand", ["source", "sizes"], ["made"]),
    "Range": node("Range", ["zero", "sizes", "one"], ["made"]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_constants_make_little_of_what_a_request_sizes(name):
    nodes = [MAKERS[name], SIZED, BATCH, SHAPE]  # in any order
    check(changed(add(*nodes, **NUMBERS)))
    for wide in ([MAX_ITEMS + 1], [2, 1 << 20], [-2, 1 << 20], [1 << 24] * 8):
        with pytest.raises(SchemaError, match=rf"\({name}\) must make at most {MAX_ITEMS} items for each that a"):
            check(changed(add(*nodes, **NUMBERS | {"wide": np.array(wide)})))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("operator", "inputs", "found"),
    [
        ("Mul", ["batch", "batch"], "Mul"),
        ("Add", ["batch", "batch"], "Add"),
        ("Cast", ["source"], "Cast"),
        ("Concat", ["source_lengths", "batch"], "a number of another kind"),
        ("Concat", ["outside", "batch"], "a number of another kind"),
    ],
)
def test_a_shape_is_of_constants_and_shapes(name, operator, inputs, found):
    """Products of shapes, numbers of a request, and constants that lie where no rule reads them."""
    attributes: Any = {"Concat": {"axis": 0}, "Cast": {"to": TensorProto.INT64}}.get(operator, {})
    nodes = [MAKERS[name], node(operator, inputs, ["sizes"], **attributes), BATCH, SHAPE]
    model = changed(add(*nodes, **NUMBERS))
    outside = external(dims=(1,))
    outside.name, outside.data_type = "outside", TensorProto.INT64
    model.graph.initializer.append(outside)
    with pytest.raises(SchemaError, match=f"must be sized by at most 64 constants and shapes, got {found}"):
        check(model, encode_onnx_data=8)


def test_a_name_of_one_body_is_no_constant_of_another():
    """Both read `n`: in the first it is a constant, in the second an input."""
    made = node("ConstantOfShape", ["n"], ["made"])
    number = numpy_helper.from_array(np.array([1]), "n")
    given = helper.make_tensor_value_info("n", TensorProto.INT64, [1])
    first = helper.make_graph([node("Expand", ["source", "n"], ["x"])], "body", [], [], [number])
    second = helper.make_graph([made], "body", [given], [])
    scans = [
        node("Scan", ["source"], [f"y{at}"], body=body, num_scan_inputs=1) for at, body in enumerate([first, second])
    ]
    check(changed(add(scans[0])))
    with pytest.raises(SchemaError, match="must be sized by"):
        check(changed(add(*scans)))


def test_a_shape_has_few_parts():
    """A graph of many such shapes must not take long to check."""
    parts = [node("Squeeze", [f"s{at + 1}"], [f"s{at}"]) for at in range(MAX_VALUES)]
    for kept in (MAX_VALUES - 2, MAX_VALUES):
        chain = [node("ConstantOfShape", ["s0"], ["made"]), *parts[:kept], node("Shape", ["source"], [f"s{kept}"])]
        if kept < MAX_VALUES:
            check(changed(add(*chain)))
        else:
            with pytest.raises(SchemaError, match="must be sized by at most 64"):
                check(changed(add(*chain)))
