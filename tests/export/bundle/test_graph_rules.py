"""Graphs of a bundle: what exports write passes, and everything else is refused by name before a session exists."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.bundle.directory import load_bundle
from export.bundle.graph_rules import EARLIER_OPERATORS, ITEM_BITS, MAX_INLINE_INTS, OPERATORS, check_graph
from export.bundle.manifest import FileDigest
from export.bundle.manifest_fields import MAX_SIZE, SchemaError
from tests.export.bundle.manifests import a_manifest, a_model

KEPT = sorted((Path(__file__).parents[2] / "bundles").glob("format-*/bundle"))
ENCODE = a_manifest().variants[0].graphs["encode"]


def check(model, role="encode", **files):
    """Checks a model as a graph of a small manifest. files: bytes of the bundle's other files."""
    manifest = a_manifest()
    variant = manifest.variants[0]
    listed = {f"fp32/{name.replace('_', '.')}": FileDigest(sha256="0" * 64, bytes=size) for name, size in files.items()}
    data = model if isinstance(model, bytes) else model.SerializeToString()
    check_graph(data, dataclasses.replace(manifest, files=listed), variant, variant.graphs[role])


def changed(change):
    model = a_model(a_manifest().variants[0], ENCODE)
    change(model.graph)
    return model


def add(*nodes, **tensors):
    """Adds nodes and tensors to a graph."""

    def change(graph):
        graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
        graph.node.extend(nodes)

    return change


def loop(operator="Loop", attribute="body"):
    body = helper.make_graph([helper.make_node("Identity", ["source"], ["more"])], "body", [], [])
    node = helper.make_node(operator, ["source"], ["looped"])
    node.attribute.append(helper.make_attribute(attribute, body))
    return node


def tensor(**fields):
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], raw_data=b"\0" * 8)
    for name, value in fields.items():
        made.ClearField(name)
        if isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


def external(location="encode.onnx.data", *, dims=(2,), **entries):
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "8", **entries}.items():
        made.external_data.add(key=key, value=value)
    return made


def with_tensor(made):
    return changed(lambda graph: graph.initializer.append(made))


def test_a_graph_of_known_operators_passes():
    check(changed(add(helper.make_node("Add", ["source", "one"], ["sum"]), one=np.array([1.0], np.float32))))
    check(with_tensor(external()), encode_onnx_data=8)


@pytest.mark.parametrize("path", KEPT, ids=[path.parent.name for path in KEPT])
def test_graphs_of_every_kept_format_pass(path):
    assert len(load_bundle(path).variants) == 2


def test_operators_of_earlier_exports_pass():
    for operator in EARLIER_OPERATORS:
        check(changed(add(helper.make_node(operator, ["source", "one"], ["x"]), one=np.array([1]))))


NODES = {
    "a loop": (loop(), r"\(Loop\) is of no operator that exports use"),
    "a condition": (loop("If", "then_branch"), r"\(If\) is of no operator that exports use"),
    "another domain": (
        helper.make_node("Add", ["source", "source"], ["x"], domain="evil"),
        r"\(evil.Add\) is of no operator",
    ),
    "a loop in a scan": (
        helper.make_node(
            "Scan", ["source"], ["x"], body=helper.make_graph([loop()], "body", [], []), num_scan_inputs=1
        ),
        r"\(Loop\) is of no operator",
    ),
    "a constant": (helper.make_node("Constant", [], ["x"], value_ints=[1]), "is of no operator"),
    "another attribute": (
        helper.make_node("Add", ["source", "source"], ["x"], axis=1),
        "has an attribute 'axis'",
    ),
    "an attribute of another type": (helper.make_node("Softmax", ["source"], ["x"], axis=1.0), "'axis' of type 1 that"),
    "a large attribute": (helper.make_node("Softmax", ["source"], ["x"], axis=2**40), "axis that must be of -16777216"),
    "a long attribute": (
        helper.make_node("Transpose", ["source"], ["x"], perm=range(9)),
        "perm that must have at",
    ),
    "a wide convolution": (
        helper.make_node("Conv", ["source", "source"], ["x"], pads=[0, 1025]),
        r"pads that must have at most 8 numbers of at most 1024, got \[0, 1025\]",
    ),
    "an infinite attribute": (
        helper.make_node("LayerNormalization", ["source", "source"], ["x"], epsilon=float("inf")),
        "epsilon that must be a number, got inf",
    ),
    "an unknown name": (helper.make_node("Add", ["source", "nothing"], ["x"]), "reads 'nothing', which nothing writes"),
    "a name twice": (helper.make_node("Identity", ["source"], ["source"]), "'source' is there twice"),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_exports_do_not_write_is_refused(name):
    node, message = NODES[name]
    with pytest.raises(SchemaError, match=message):
        check(changed(add(node)))


@pytest.mark.parametrize("operator", ["Range", "Expand", "ConstantOfShape", "Add", "Mul"])
def test_a_node_that_computes_when_it_is_opened_is_refused(operator):
    names = {"Range": ["a", "a", "a"], "ConstantOfShape": ["a"]}.get(operator, ["a", "a"])
    with pytest.raises(SchemaError, match=rf"\({operator}\) computes from constants alone"):
        check(changed(add(helper.make_node(operator, names, ["x"]), a=np.array([1 << 20], np.int64))))


def test_a_single_number_of_a_recurrent_model_passes():
    number = helper.make_node("ConstantOfShape", ["shape"], ["x"])
    check(changed(add(number, shape=np.zeros(0, np.int64))))
    with pytest.raises(SchemaError, match=r"\(Range\) computes from constants alone"):
        check(changed(add(number, helper.make_node("Range", ["x", "x", "x"], ["y"]), shape=np.zeros(0, np.int64))))


TENSORS = {
    "too few bytes": (tensor(dims=[3]), r"must have 12 bytes for its shape \[3\], got 8"),
    "a huge shape": (tensor(dims=[2**40]), "axes of at most 16777216"),
    "a huge product": (tensor(dims=[2**24, 2**24]), "must have 1125899906842624 bytes for its shape"),
    "a negative size": (tensor(dims=[-1]), "axes of at most"),
    "many axes": (tensor(dims=[1] * 9), "at most 8 axes"),
    "strings": (tensor(data_type=TensorProto.STRING), "is of a type that exports do not use, 8"),
    "a parent folder": (external("../encode.onnx.data"), "must lie in encode.onnx.data beside the graph, got '../enc"),
    "an absolute path": (external("/etc/passwd"), "must lie in encode.onnx.data beside the graph"),
    "the weights of another graph": (external("decode.onnx.data"), "must lie in encode.onnx.data beside the graph"),
    "no path": (external("*/memory/*"), "must lie in encode.onnx.data beside the graph"),  # runtimes have such marks
    "the end of the file": (external(offset="4"), "must have 8 bytes within 8, got 8 at 4"),
    "another length": (external(length="4"), "must have 8 bytes within 8, got 4 at 0"),
    "a negative place": (external(offset="-8"), "must lie at an offset and a length"),
    "another key": (external(basepath="/"), "must lie at a location, an offset and a length, got"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_is_not_what_it_says_is_refused(name):
    made, message = TENSORS[name]
    with pytest.raises(SchemaError, match=f"the tensor 'w' {'.*' if message[0] != 'm' else ''}{message}"):
        check(with_tensor(made), encode_onnx_data=8, decode_onnx_data=8)


@pytest.mark.parametrize("numbers", [[MAX_SIZE + 1], [-(2**63)], [0] * (MAX_INLINE_INTS + 1)])
def test_integers_are_bounded(numbers):
    check(with_tensor(numpy_helper.from_array(np.array([MAX_SIZE, -1, 2**63 - 1], np.int64), "w")))
    with pytest.raises(SchemaError, match=r"must have at most 1024 integers of at most 16777216"):
        check(with_tensor(numpy_helper.from_array(np.array(numbers, np.int64), "w")))


def test_inputs_and_outputs_are_those_of_the_manifest():
    with pytest.raises(SchemaError, match=r"its inputs must be \('tokens',.*got \('source', 'source_lengths'\)"):
        check(changed(lambda graph: None), role="decode")

    def widen(graph):
        graph.input[2].type.tensor_type.shape.dim[3].dim_value = 16

    decode = a_model(a_manifest().variants[0], a_manifest().variants[0].graphs["decode"])
    check(decode, role="decode")
    widen(decode.graph)
    with pytest.raises(SchemaError, match=r"'past.self_key.0' must be float32 \('batch', 2, 'capacity', 8\), got"):
        check(decode, role="decode")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.opset_import.add(domain="evil", version=1),
            "operators of version 1 of 'evil', and 18..24 of",
        ),
        (lambda m: m.opset_import.add(version=99), "operators of version 99"),
        (lambda m: setattr(m, "ir_version", 99), "its IR version must be of 8..11, got 99"),
        (lambda m: m.functions.add(name="f"), "has a field of number 25, which no export writes"),
        (lambda m: m.graph.sparse_initializer.add(), "has a field of number 15"),
        (lambda m: m.training_info.add(), "has a field of number 20"),
    ],
)
def test_a_model_of_another_form_is_refused(change, message):
    model = changed(lambda graph: None)
    change(model)
    with pytest.raises(SchemaError, match=message):
        check(model)


def test_types_have_the_sizes_of_onnx():
    for kind, bits in ITEM_BITS.items():
        assert 8 * helper.tensor_dtype_to_np_dtype(kind).itemsize == bits


def operators_of(path):
    def nodes(graph):
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                yield from nodes(attribute.g)

    for file in path.rglob("*.onnx"):
        for node in nodes(onnx.load(file, load_external_data=False).graph):
            yield node.domain, node.op_type, frozenset((each.name, each.type) for each in node.attribute)


def test_each_operator_that_a_rewriting_adds_is_in_the_table():
    known, added = set().union(*OPERATORS.values()), set()
    for file in (Path(__file__).parents[3] / "export").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                added |= {node.args[0].value} if called in ("add", "make_node") else set()
    operators = {name for name in added if isinstance(name, str) and name[:1].isupper()}
    assert {"LeakyRelu", "MatMulIntegerToFloat", "QuantizeLinear"} <= operators <= known


def test_the_operators_of_tiny_models_are_in_the_table(
    tiny_attention_bundle, tiny_generation_bundle, tiny_recurrent_bundle, tiny_encoder_bundles
):
    paths = [
        tiny_attention_bundle,
        tiny_generation_bundle,
        tiny_recurrent_bundle,
        *tiny_encoder_bundles.values(),
        *KEPT,
    ]
    found = {operator for path in [*paths, *KEPT] for operator in operators_of(path)}
    assert all(attributes <= OPERATORS[domain][name].items() for domain, name, attributes in found)
    assert len({name for _, name, _ in found}) > 45
