"""Encoder-only models: their graphs, manifests, quantization schemes and golden vectors."""

import json
from collections import Counter
from dataclasses import replace

import onnx
import pytest

from export.bundle.directory import ManifestError, load_bundle
from export.export_errors import ExportError
from export.graphs.encoder import encoder_signature
from export.options import ExportOptions, QuantizationOptions
from export.select_scheme import SchemeSelectionError
from export.texts import Development
from export.to_onnx import export_model
from export.verification.verifier import verify_bundle
from service.engine.golden_check import check_golden_decode
from service.errors import StartupError
from service.runtime.onnx_model import OnnxModel
from tests.tiny import ENCODERS, TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer(with_mask=True)


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_manifest_describes_the_heads_of_the_model(tiny_encoder_bundles, kind):
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
    assert encoding.has_token_labels == (kind == "tokens")
    assert len(manifest.golden.vectors["fp32"].values) == 32
    assert verify_bundle(tiny_encoder_bundles[kind])["passed"]


@pytest.mark.parametrize("kind", ENCODERS)
def test_quantized_graphs_pass_verification(tmp_path, kind):
    manifest = export_model(
        tiny_encoder(kind),
        TOKENIZER,
        tmp_path / "b",
        ExportOptions(texts=TEXTS, precisions=("int8",), quantization=QuantizationOptions(max_loss=1.0)),
    )
    (variant,) = manifest.variants
    assert variant.quantization is not None
    assert variant.quantization.scheme in ("w8a8-dynamic", "w8a8-static")
    assert variant.quantization.batch_invariant
    assert {figures.scheme for figures in variant.comparison} == {"fp32", "w8a8-dynamic", "w8a8-static"}
    names = {check["name"] for check in manifest.parity["checks"]}
    assert {"weights against the checkpoint", "each product against its inputs"} <= names
    assert set(manifest.golden.vectors) == {"int8"}


def test_a_scheme_that_changes_predictions_is_not_selected(tmp_path):
    development = Development([f"{text} {text}" for text in TEXTS])
    schemes = QuantizationOptions(scheme="w8a8-static", development=development, max_loss=-1.0)
    with pytest.raises(ExportError, match="no scheme is within -1 readings that differ of fp32"):
        export_model(
            tiny_encoder("masked"), TOKENIZER, tmp_path / "b", ExportOptions(precisions=("int8",), quantization=schemes)
        )
    assert issubclass(SchemeSelectionError, ValueError)


@pytest.mark.parametrize(
    ("precisions", "scheme"), [(("fp32", "int4"), "auto"), (("int8",), "w8a8-dynamic-kv8"), (("int8",), "w8-block64")]
)
def test_schemes_of_decoders_are_refused(tmp_path, precisions, scheme):
    with pytest.raises(ExportError, match=r"are of decoders; export an encoder with fp32, fp16, or int8"):
        export_model(
            tiny_encoder("masked"),
            TOKENIZER,
            tmp_path / "b",
            ExportOptions(texts=TEXTS, precisions=precisions, quantization=QuantizationOptions(scheme=scheme)),
        )


def test_heads_that_the_operator_refuses_attend_in_plain_operators(tmp_path):
    shape = {"vocab_size": TOKENIZER.vocab_size, "head_dim": 12, "num_encoder_layers": 1}
    model = tiny_model(tiny_config("encoder", **shape, pooler="relu"), seed=3)
    manifest = export_model(model, TOKENIZER, tmp_path / "b", ExportOptions(texts=TEXTS))
    graph = onnx.load(tmp_path / "b" / manifest.variants[0].graphs["encode"].file).graph
    assert sum(node.op_type == "Softmax" for node in graph.node) == 1
    assert not any(node.op_type == "GroupQueryAttention" for node in graph.node)


@pytest.mark.parametrize(
    ("precision", "counts"),
    [
        ("fp32", {"GroupQueryAttention": 2, "Attention": 0, "Softmax": 0, "Abs": 1}),
        pytest.param("fp16", {"Attention": 1, "Softmax": 1, "Abs": 1}, marks=pytest.mark.slow),
        pytest.param("int8", {"GroupQueryAttention": 2, "Attention": 0, "Softmax": 0}, marks=pytest.mark.slow),
    ],
)
def test_windows_in_both_directions_are_exported(precision, counts, tmp_path):
    layers = {
        "positions": "rotary",
        "embedding_norm": True,
        "first_attention_norm": False,
        "gated": True,
        "bias": False,
        "num_kv_heads": 1,
        "num_encoder_layers": 2,
        "layer_groups": ({"layers": (0,), "sliding_window": 2, "rotary_base": 100.0},),
    }
    model = tiny_model(tiny_config("encoder", vocab_size=TOKENIZER.vocab_size, **layers), seed=3)
    schemes = QuantizationOptions(scheme="w8a8-dynamic" if precision == "int8" else "auto", max_loss=1.0)
    options = ExportOptions(texts=TEXTS, precisions=(precision,), attention=precision == "fp32", quantization=schemes)
    manifest = export_model(model, TOKENIZER, tmp_path / "b", options)
    assert manifest.parity["passed"]
    nodes = onnx.load(tmp_path / "b" / manifest.variants[0].graphs["encode"].file).graph.node
    found = Counter(node.op_type for node in nodes)
    assert {name: found[name] for name in counts} == counts


def test_half_precision_is_exported_and_compared(tmp_path):
    manifest = export_model(
        tiny_encoder("attention"), TOKENIZER, tmp_path / "b", ExportOptions(texts=TEXTS, precisions=("fp32", "fp16"))
    )
    assert manifest.parity["passed"]
    assert {variant.precision for variant in manifest.variants} == {"fp32", "fp16"}


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
        (lambda m: m["encoding"].update(has_token_labels=True), "has_token_labels must come with labels"),
        (
            lambda m: m["encoding"].update(has_token_labels=True, labels=["a"], multi_label=True),
            "has_token_labels must come with labels, and without multi_label",
        ),
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
    from export.bundle.manifest_fields import SchemaError
    from export.bundle.manifest_parser import parse_manifest

    values = json.loads((tiny_encoder_bundles["masked"] / "manifest.json").read_text())
    change(values)
    with pytest.raises(SchemaError, match=message):
        parse_manifest(values)
    assert issubclass(ManifestError, Exception)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("masked", ["places"], ["place_logprobs"]),
        ("classify", [], ["pooled", "label_logits"]),
        ("attention", [], ["label_logits", "token_weights"]),
        ("tokens", [], ["token_label_logits"]),
    ],
)
def test_inputs_and_outputs_follow_the_head(kind, inputs, outputs):
    signature = encoder_signature(tiny_encoder(kind))
    assert signature.inputs == ("source", "source_lengths", *inputs)
    assert signature.outputs == ("encoder_states", *outputs)
