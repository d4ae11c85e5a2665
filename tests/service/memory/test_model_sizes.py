"""Sizes of a model as its manifest tells them."""

from dataclasses import replace

import pytest

from export.bundle.manifest import FileDigest, StateSpec, Variant
from service.memory.model_sizes import shape_of, widths
from tests.edge import manifest

STATES = (
    StateSpec(name="key", kind="self_kv", dtype="float32", shape=("batch", 4, "capacity", 8)),
    StateSpec(name="cross", kind="cross_kv", dtype="int8", shape=("batch", 4, "source", 8)),
)


def model(**changes):
    """A model with these states."""
    variants = (Variant(precision="fp32", graphs={}, states=STATES),)
    return replace(manifest(), variants=variants, files={"tokenizer.json": FileDigest(sha256="", bytes=500)}, **changes)


def test_sizes_are_those_of_the_variant():
    found = model()
    shape = shape_of(found, found.variants[0], opened=30, opened_later=4, attention=5)
    assert (shape.layout.target_bytes, shape.layout.source_bytes) == (4 * 8 * 4, 4 * 8)
    assert (shape.opened, shape.opened_later, shape.attention, shape.tokenizer) == (30, 4, 5, 500)
    assert (shape.max_source_len, shape.max_target_len) == (found.limits.max_source_len, found.limits.max_target_len)


def test_widths_are_those_of_the_model_that_was_exported():
    found = model(lineage={"model": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "bias": True}})
    assert widths(found, found.variants[0]) == (512, 2048, 8)
    experts = model(lineage={"model": {"d_model": 512, "d_ff": 100, "num_experts": 4, "experts_per_token": 2}})
    assert widths(experts, experts.variants[0]) == (512, 200, 4)


@pytest.mark.parametrize("lineage", [{}, {"model": "large"}, {"model": {"d_model": "wide"}}])
def test_without_them_they_are_those_of_the_states(lineage):
    found = model(lineage=lineage)
    assert widths(found, found.variants[0]) == (32, 128, 4)


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_heads": 3}, 3),
        ({"num_heads": 3, "sliding_window": 0, "layer_groups": [{"layers": [0], "rotary_base": 5.0}]}, 3),
        ({"num_heads": 3, "sliding_window": 8}, 5),
        ({"num_heads": 3, "sliding_window": 0, "layer_groups": [{"layers": [0], "sliding_window": 8}]}, 5),
    ],
)
def test_a_window_of_an_encoder_counts_as_two_heads(config, heads):
    found = model(lineage={"model": {"d_model": 512, **config}})
    assert widths(found, found.variants[0])[2] == max(config["num_heads"], 4), "in a decoder it has no map of its own"
    alone = replace(found, limits=replace(found.limits, max_target_len=0))
    assert widths(alone, replace(alone.variants[0], states=()))[2] == heads
