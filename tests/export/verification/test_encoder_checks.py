"""Graphs of encoders alone: what is exported passes, what is wrong is refused by a check with a name."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.bundle import ManifestError, load_bundle
from export.export_errors import ExportError, ParityError
from export.options import QuantizationOptions
from export.select_scheme import Development, SchemeSelectionError
from export.to_onnx import export_model
from export.verification.inputs import predicted_places, sample_inputs
from export.verification.verifier import verify_bundle, verify_graphs
from service.engine.golden_check import check_golden_decode
from service.errors import StartupError
from service.runtime.runner import OnnxModel
from tests.tiny import ENCODERS, TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer(with_mask=True)


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_bundle_says_what_its_model_can(tiny_encoder_bundles, kind):
    manifest = load_bundle(tiny_encoder_bundles[kind])
    assert manifest.task == "encoding"
    assert set(manifest.variants[0].graphs) == {"encode"}
    assert manifest.variants[0].states == ()
    assert (manifest.limits.max_source_len, manifest.limits.max_target_len) == (64, 0)
    encoding = manifest.encoding
    assert encoding is not None
    assert (encoding.mask == 4) == (kind == "masked")
    assert encoding.labels == tuple(ENCODERS[kind].get("labels", ()))
    assert (encoding.width, encoding.has_token_weights) == (32, kind == "attention")
    assert len(manifest.golden.vectors["fp32"].values) == 32
    assert verify_bundle(tiny_encoder_bundles[kind])["passed"]


def broken(bundle, tmp_path, role="encode"):
    """The graph of a bundle, to be changed, and a function that tells the checks which then fail."""
    manifest = load_bundle(bundle)
    graph = onnx.load(bundle / manifest.variants[0].graphs[role].file)

    def failing(model):
        (tmp_path / "fp32").mkdir()
        onnx.save(graph, tmp_path / "fp32/encode.onnx")
        checks = verify_graphs(
            tmp_path, manifest.variants[0], model, sample_inputs(model.config, TOKENIZER, TEXTS)
        ).checks
        return {check.name for check in checks if not check.passed}

    return graph.graph, failing


def test_a_changed_weight_is_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["masked"], tmp_path)
    tensor = next(t for t in graph.initializer if t.name.startswith("encoder.blocks.1.feed_forward.outer.weight"))
    weight = numpy_helper.to_array(tensor).copy()
    weight[0, 0] += 0.5
    tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    assert "encode against PyTorch" in failing(tiny_encoder("masked"))


def test_attention_to_padding_is_found(tiny_encoder_bundles, tmp_path):
    """As if lengths were the width of the batch."""
    graph, failing = broken(tiny_encoder_bundles["classify"], tmp_path)
    sub = next(node for node in graph.node if "source_lengths" in node.input)
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int32), "nothing"))
    wide = onnx.helper.make_node("Mul", ["source_lengths", "nothing"], ["none"])
    longest = onnx.helper.make_node("Add", ["none", "width"], ["longest"])
    attention = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    place = list(graph.node).index(sub)
    named = onnx.helper.make_node("Identity", [attention.input[6]], ["width"])
    maker = next(i for i, node in enumerate(graph.node) if attention.input[6] in node.output)
    sub.input[:] = ["longest" if name == "source_lengths" else name for name in sub.input]
    nodes = list(graph.node)
    nodes.remove(sub)
    nodes[max(maker, place) + (0 if maker < place else 1) :] = [
        named, wide, longest, sub, *nodes[max(maker, place) + (0 if maker < place else 1) :],
    ]  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    assert failing(tiny_encoder("classify")) >= {"encode against PyTorch", "encode in a batch as alone"}


def test_weights_behind_a_text_are_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["attention"], tmp_path)
    maker = next(node for node in graph.node if "token_weights" in node.output)
    index = list(maker.output).index("token_weights")
    graph.initializer.append(numpy_helper.from_array(np.array(1e-4, np.float32), "leak"))
    maker.output[index] = "inside"
    for node in graph.node:
        node.input[:] = ["inside" if name == "token_weights" else name for name in node.input]
    graph.node.append(onnx.helper.make_node("Add", ["inside", "leak"], ["token_weights"]))
    assert "weights stay within the text" in failing(tiny_encoder("attention"))


def test_places_of_other_rows_are_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["masked"], tmp_path)
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "first"))
    gather = next(node for node in graph.node if "places" in node.input)
    gather.input[:] = ["own" if name == "places" else name for name in gather.input]
    nodes = [onnx.helper.make_node("Mul", ["places", "first"], ["own"]), *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    assert "encode against PyTorch" in failing(tiny_encoder("masked"))


def test_a_graph_that_is_none_of_the_model_is_not_written(tmp_path, monkeypatch):
    model = tiny_encoder("classify")
    other = tiny_model(model.config, seed=2)
    monkeypatch.setattr("export.to_onnx.verify_variants", lambda d, v, m, s: verify_other(d, v, other, s))
    from export.verification.verifier import verify_variants as verify_other

    with pytest.raises(ParityError, match="encode against PyTorch"):
        export_model(model, TOKENIZER, tmp_path / "bundle", texts=TEXTS)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("kind", ENCODERS)
def test_integers_compute_what_a_model_that_rounds_does(tmp_path, kind):
    manifest = export_model(
        tiny_encoder(kind),
        TOKENIZER,
        tmp_path / "b",
        texts=TEXTS,
        precisions=("int8",),
        quantization=QuantizationOptions(max_loss=1.0),
    )
    (variant,) = manifest.variants
    assert variant.quantization is not None
    assert variant.quantization.scheme in ("w8a8-dynamic", "w8a8-static")
    assert variant.quantization.batch_invariant
    assert {figures.scheme for figures in variant.comparison} == {"fp32", "w8a8-dynamic", "w8a8-static"}
    names = {check["name"] for check in manifest.parity["checks"]}
    assert {"weights against the checkpoint", "each product against its inputs"} <= names
    assert set(manifest.golden.vectors) == {"int8"}


def test_a_form_that_changes_what_is_said_is_not_taken(tmp_path):
    development = Development([f"{text} {text}" for text in TEXTS])
    schemes = QuantizationOptions(scheme="w8a8-static", development=development, max_loss=-1.0)
    with pytest.raises(ExportError, match="no scheme is within -1 readings that differ of fp32"):
        export_model(tiny_encoder("masked"), TOKENIZER, tmp_path / "b", precisions=("int8",), quantization=schemes)
    assert issubclass(SchemeSelectionError, ValueError)


@pytest.mark.parametrize(
    ("precisions", "scheme"), [(("fp32", "int4"), "auto"), (("int8",), "w8a8-dynamic-kv8"), (("int8",), "w8-block64")]
)
def test_forms_of_decoders_are_refused(tmp_path, precisions, scheme):
    with pytest.raises(ExportError, match=r"are of decoders; export an encoder with fp32, fp16, or int8"):
        export_model(
            tiny_encoder("masked"),
            TOKENIZER,
            tmp_path / "b",
            texts=TEXTS,
            precisions=precisions,
            quantization=QuantizationOptions(scheme=scheme),
        )


def test_heads_that_the_operator_refuses_attend_in_plain_operators(tmp_path):
    model = tiny_model(tiny_config("encoder", vocab_size=TOKENIZER.vocab_size, head_dim=12, pooler="relu"), seed=3)
    manifest = export_model(model, TOKENIZER, tmp_path / "b", texts=TEXTS)
    graph = onnx.load(tmp_path / "b" / manifest.variants[0].graphs["encode"].file).graph
    assert sum(node.op_type == "Softmax" for node in graph.node) == 2
    assert not any(node.op_type == "GroupQueryAttention" for node in graph.node)


def test_half_precision_is_exported_and_compared(tmp_path):
    manifest = export_model(
        tiny_encoder("attention"), TOKENIZER, tmp_path / "b", texts=TEXTS, precisions=("fp32", "fp16")
    )
    assert manifest.parity["passed"]
    assert {variant.precision for variant in manifest.variants} == {"fp32", "fp16"}


def test_places_are_inside_their_text():
    assert [predicted_places(tuple(range(length))) for length in (1, 2, 3, 9)] == [(0,), (0, 1), (0, 1, 2), (0, 4, 8)]


def test_another_vector_stops_a_server(tiny_encoder_bundles):
    path = tiny_encoder_bundles["classify"]
    model = OnnxModel.open(path, load_bundle(path), device="cpu")
    golden = model.manifest.golden
    check_golden_decode(model.runner(max_rows=1), model.manifest, "fp32")
    vector = golden.vectors["fp32"]
    wrong = replace(vector, values=(vector.values[0] + 0.1, *vector.values[1:]))
    manifest = replace(model.manifest, golden=replace(golden, vectors={"fp32": wrong}))
    with pytest.raises(
        StartupError, match=r"self-check failed: this machine's vector of a text is .* off the bundle's"
    ):
        check_golden_decode(model.runner(max_rows=1), manifest, "fp32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["encoding"].update(mask=10_000), "encoding.mask must be an id of"),
        (lambda m: m["encoding"].update(labels=["a", "a"]), "encoding.labels must be different names"),
        (lambda m: m["encoding"].update(width=0), "encoding.width must be"),
        (lambda m: m.update(encoding=None), "encoding must describe the outputs of encode"),
        (lambda m: m["golden"].update(vectors={}), "golden.vectors.fp32 must have 32 values"),
        (lambda m: m["golden"].update(output=[2]), "golden must have a source, and nothing else"),
        (lambda m: m["limits"].update(max_target_len=4), "limits.max_target_len must be 0"),
        (
            lambda m: m["variants"][0]["graphs"].update(decode=m["variants"][0]["graphs"]["encode"]),
            "graphs must be exactly",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tiny_encoder_bundles, tmp_path, change, message):
    from export.manifest_parser import SchemaError, parse_manifest

    values = json.loads((tiny_encoder_bundles["masked"] / "manifest.json").read_text())
    change(values)
    with pytest.raises(SchemaError, match=message):
        parse_manifest(values)
    assert issubclass(ManifestError, Exception)


def test_fp32_vectors_are_those_of_pytorch(tiny_encoder_bundles):
    golden = load_bundle(tiny_encoder_bundles["masked"]).golden
    source = torch.tensor([golden.source])
    with torch.inference_mode():
        states = tiny_encoder("masked")(source, torch.tensor([source.shape[1]]))
    assert golden.vectors["fp32"].values == pytest.approx(states[0].mean(0).numpy(), abs=1e-4)
