"""A small manifest, for tests of what is read and what is refused."""

import dataclasses

from onnx import TensorProto, helper

from export.bundle.manifest import (
    Golden,
    GraphSpec,
    Limits,
    Manifest,
    SpecialTokenTemplate,
    StateSpec,
    Tokens,
    Variant,
)


def a_manifest(**changes):
    cross = StateSpec(name="cross_key.0", kind="cross_kv", dtype="float32", shape=("batch", 2, "source", 8))
    own = StateSpec(name="self_key.0", kind="self_kv", dtype="float32", shape=("batch", 2, "capacity", 8))
    graphs = {
        "encode": GraphSpec(
            role="encode", file="fp32/encode.onnx", inputs=("source", "source_lengths"), outputs=("cross_key.0",)
        ),
        "decode": GraphSpec(
            role="decode",
            file="fp32/decode.onnx",
            inputs=("tokens", "cross_key.0", "past.self_key.0"),
            outputs=("logits", "present.self_key.0"),
        ),
        "logprobs": GraphSpec(
            role="logprobs", file="fp32/logprobs.onnx", inputs=("logits", "top_k"), outputs=("logprobs", "top_ids")
        ),
    }
    manifest = Manifest(
        architecture="encoder_decoder",
        task="translation",
        tokens=Tokens(pad=0, bos=1, eos=2, unk=3),
        template=SpecialTokenTemplate(source_suffix=(2,), target_prefix=(1,)),
        limits=Limits(vocab_size=10, max_source_len=5, max_target_len=6, max_block=1),
        variants=(Variant(precision="fp32", graphs=graphs, states=(own, cross)),),
        golden=Golden(source=(4, 2), prompt=(1,), output=(5, 2)),
        lineage={"seed": 1, "versions": {"torch": "2"}},
        parity={"passed": True, "checks": [{"name": "encode", "passed": True}]},
        created="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(manifest, **changes)


TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int8": TensorProto.INT8}


def a_model(variant, spec):
    """A graph with the inputs and outputs of a manifest, which copies its first input."""
    states = {f"{prefix}{state.name}": state for state in variant.states for prefix in ("", "past.", "present.")}

    def value(name):
        state = states.get(name)
        if state is None:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"])
        return helper.make_tensor_value_info(name, TYPES[state.dtype], state.shape)

    nodes = [helper.make_node("Identity", [spec.inputs[0]], [name], name=f"copy_{name}") for name in spec.outputs]
    graph = helper.make_graph(nodes, spec.role, [*map(value, spec.inputs)], [*map(value, spec.outputs)])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 23)])


def fill(directory, manifest=None):
    """Writes the files of a small manifest, and returns it without their digests."""
    manifest = manifest or a_manifest()
    for variant in manifest.variants:
        for spec in variant.graphs.values():
            (directory / spec.file).parent.mkdir(exist_ok=True)
            (directory / spec.file).write_bytes(a_model(variant, spec).SerializeToString())
    (directory / "tokenizer.json").write_bytes(b"tokenizer.json" * 7)
    return manifest
