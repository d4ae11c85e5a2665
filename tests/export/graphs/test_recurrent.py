"""Graphs of recurrent models: verified for every kind, in every precision, and refused where they cannot be."""

import copy
import dataclasses

import onnx
import pytest

from export.bundle.directory import load_bundle
from export.bundle.manifest import AlignmentSpec
from export.export_errors import ExportError
from export.options import ExportOptions, QuantizationOptions
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.texts import Development
from export.to_onnx import export_model
from export.variants import save_variant, trace_model
from export.verification.inputs import sample_inputs
from export.verification.verifier import verify_graphs
from tests.export.graphs.kinds import ADDITIVE
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

DOT = {"score": "dot", "encoder_dim": 0, "input_feeding": False}


def assert_verified(model, scheme, directory, *, attention=True):
    samples, scheme = sample_inputs(model.config), SCHEMES[scheme]
    ranges = calibrate(model, list(zip(samples.sources, samples.targets, strict=True))) if scheme.needs_ranges else None
    stored = copy.deepcopy(model).half() if scheme.precision == "fp16" else model
    variant = save_variant(trace_model(stored, attention=attention), directory, scheme, ranges=ranges)
    checks = verify_graphs(directory, variant, model, samples).checks
    assert [check for check in checks if not check.passed] == []
    return variant


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        pytest.param(
            "fp32",
            {"score": "none", "input_feeding": False, "bidirectional": False, "num_encoder_layers": 1},
            marks=pytest.mark.slow,
        ),
        pytest.param("fp32", {"cell": "gru", **DOT}, marks=pytest.mark.slow),
        pytest.param("fp32", ADDITIVE["fp32"], marks=pytest.mark.slow),
        pytest.param("fp16", ADDITIVE["fp16"], marks=pytest.mark.slow),
        ("w8a8-dynamic", {}),
        pytest.param("w8a8-static", {"cell": "gru", "score": "additive"}, marks=pytest.mark.slow),
    ],
)
def test_every_kind_computes_what_pytorch_does(scheme, changes, tmp_path):
    model = tiny_model(tiny_config("recurrent", **changes))
    assert_verified(model, scheme, tmp_path, attention=model.config.score != "none")


def test_a_bundle_says_what_is_kept(tiny_recurrent_bundle):
    manifest = load_bundle(tiny_recurrent_bundle)
    variant = manifest.variant("fp32")
    kinds = {state.name: (state.kind, state.shape) for state in variant.states}
    assert kinds == {
        **dict.fromkeys(("hidden.0", "cell.0", "hidden.1", "cell.1", "fed"), ("recurrent", ("batch", 32))),
        **{f"first_{part}.{i}": ("cross_kv", ("batch", 32)) for i in (0, 1) for part in ("hidden", "cell")},
        "cross_value.0": ("cross_kv", ("batch", 1, "source", 48)),
    }
    assert (manifest.architecture, manifest.task) == ("recurrent", "translation")
    assert manifest.alignment == AlignmentSpec(layers=1, heads=1, default_layer=1)
    assert manifest.limits.max_block == 1
    for spec in variant.graphs.values():
        graph = onnx.load(tiny_recurrent_bundle / spec.file).graph
        assert tuple(value.name for value in graph.input) == spec.inputs
        assert tuple(value.name for value in graph.output) == spec.outputs


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_traces")
def test_export_is_the_same_bytes_twice():
    one, two = (trace_model(tiny_model(tiny_config("recurrent"))).graphs for _ in range(2))
    assert {role: graph.SerializeToString() for role, graph in one.items()} == {
        role: graph.SerializeToString() for role, graph in two.items()
    }


@pytest.mark.parametrize(
    ("changes", "arguments", "problem"),
    [
        (
            {"score": "none", "input_feeding": False},
            {"attention": True},
            "attention: a recurrent model without a score",
        ),
        ({"encoder_dim": 20}, {}, "encoder_dim: must be a multiple of 8 .* got 20"),
        (
            {},
            {
                "precisions": ("int8",),
                "quantization": QuantizationOptions(scheme="w8a8-dynamic-kv8", development=Development(TEXTS)),
            },
            r"scheme: w8a8-dynamic-kv8 keeps int8 keys and values, and a recurrent model has none; take w8a8-dynamic",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused(changes, arguments, problem, tmp_path):
    model = tiny_model(tiny_config("recurrent", **changes))
    with pytest.raises(ExportError, match=problem):
        export_model(model, tiny_tokenizer(), tmp_path / "bundle", ExportOptions(**arguments))
    assert not (tmp_path / "bundle").exists()


def test_int8_is_chosen_among_the_forms_that_there_are(tmp_path):
    model = tiny_model(tiny_config("recurrent"))
    schemes = QuantizationOptions(development=Development(TEXTS), max_loss=1.0)
    options = ExportOptions(precisions=("int8",), quantization=schemes)
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "bundle", options)
    (variant,) = manifest.variants
    assert {figures.scheme for figures in variant.comparison} == {"fp32", "w8a8-dynamic", "w8a8-static"}
    assert {state.dtype for state in variant.states} == {"float32"}
    assert dataclasses.asdict(variant)["quantization"]["kv_cache"] == "float32"
