"""int8 KV caches: their types in the graph, and their steps in the products that fill them."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from tests.export.passes.quantized_graphs import graph, operators, prepared


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder rms"])
def test_int8_caches_are_int8_wherever_they_are_seen(architecture):
    model = graph(architecture, "decode", "w8a8-static-kv8")
    caches = [
        v
        for v in (*model.graph.input, *model.graph.output)
        if v.name.partition(".")[0] in ("past", "present", "passed", "cross_key", "cross_value")
    ]
    assert {value.type.tensor_type.elem_type for value in caches} == {TensorProto.INT8}
    counts = {
        "encoder_decoder": (4, 12),
        "decoder rms": (0, 8),
    }  # TensorScatter; past and present, handed through, sources
    scatters, seen = counts[architecture]
    assert operators(model).count("TensorScatter") == scatters
    assert len(caches) == seen + (4 + 4 if architecture == "encoder_decoder" else 0)


def test_the_steps_of_a_cache_are_in_the_scales_of_the_product_that_fills_it():
    _, _, ranges = prepared("encoder_decoder")
    plain, narrow = (
        graph("encoder_decoder", "encode", "w8a8-dynamic"),
        graph("encoder_decoder", "encode", "w8a8-dynamic-kv8"),
    )
    name = "decoder.blocks.1.cross_attention.key_value.weight.int8.scale"
    before, after = (
        next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name) for model in (plain, narrow)
    )
    keys, values = ranges.cache_steps("cross.1")
    half = len(before) // 2
    np.testing.assert_allclose(before / after, [keys] * half + [values] * half, rtol=1e-5)
