"""The graphs `align` and `attend`: their axes, and what they leave out."""

import onnx

from export.bundle.directory import load_bundle
from export.bundle.manifest import AlignmentSpec, AttentionMaps


def test_attention_adds_a_graph_and_changes_no_other(tiny_translation_bundle, tiny_attention_bundle):
    plain, manifest = load_bundle(tiny_translation_bundle), load_bundle(tiny_attention_bundle)
    assert (plain.alignment, plain.attention_maps) == (None, ())
    assert manifest.alignment == AlignmentSpec(layers=2, heads=4, default_layer=2)
    added = {name: digest for name, digest in manifest.files.items() if name not in plain.files}
    words = ["fp32/project_shortlist.onnx", "fp32/shortlist_logprobs.onnx", "shortlist.json"]
    assert sorted(added) == ["fp32/align.onnx", "fp32/attend.onnx", *words]
    changed = [name for name, digest in plain.files.items() if manifest.files[name] != digest]
    assert changed == ["fp32/decode.onnx"], "by the shortlist alone"
    spec = manifest.variant("fp32").graphs["align"]
    crosses = [f"cross_{part}.{i}" for i in range(2) for part in ("key", "value")]
    assert spec.inputs == ("tokens", "source_lengths", *crosses)
    graph = onnx.load(tiny_attention_bundle / spec.file).graph
    (output,) = graph.output
    axes = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
    assert (output.name, axes) == ("cross_attention", [2, "batch", 4, "block", "source"])
    assert {node.domain for node in graph.node} == {""}
    names = {tensor.name for tensor in graph.initializer}
    assert not any("blocks.1.feed_forward" in name or "decoder.norm" in name for name in names), "computed in vain"
    checks = {check["name"]: check["passed"] for check in manifest.parity["checks"]}
    assert checks["attention against PyTorch"]
    assert checks["attention stays within the source"]


def test_one_graph_returns_every_attention_of_a_pass(tiny_attention_bundle):
    manifest = load_bundle(tiny_attention_bundle)
    assert manifest.attention_maps == tuple(
        AttentionMaps(kind=kind, layers=2, heads=4) for kind in ("encoder", "decoder", "cross")
    )
    spec = manifest.variant("fp32").graphs["attend"]
    assert spec.inputs == ("source", "source_lengths", "tokens", "lengths")
    graph = onnx.load(tiny_attention_bundle / spec.file).graph
    axes = {
        output.name: [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
        for output in graph.output
    }
    assert axes == {
        "encoder_attention": [2, "batch", 4, "source", "source"],
        "decoder_attention": [2, "batch", 4, "block", "block"],
        "cross_attention": [2, "batch", 4, "block", "source"],
    }
    assert tuple(axes) == spec.outputs
    assert {node.domain for node in graph.node} == {""}
    names = {tensor.name for tensor in graph.initializer}
    assert not any("decoder.blocks.1.feed_forward" in name or "decoder.norm" in name for name in names), "in vain"
    checks = {check["name"]: check for check in manifest.parity["checks"]}
    assert checks["every attention against PyTorch"]["tolerance"] == 1e-5
    assert checks["every attention against PyTorch"]["passed"]
    assert checks["every attention stays within its rows"]["passed"]
