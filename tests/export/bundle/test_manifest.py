"""The methods of a manifest's types and of a shortlist."""

import dataclasses
import json

import pytest

from export.bundle.manifest import PAD_MULTIPLE, Manifest, StateSpec, Tokens, capacity_for, largest_capacity
from export.bundle.target_shortlist import Shortlist
from tests.export.bundle.manifests import a_manifest


def test_a_shortlist_is_bounded_but_lists_some_words_for_every_source_token():
    by_source = {source: tuple(range(1000 + 50 * source, 1050 + 50 * source)) for source in range(300)}
    shortlist = Shortlist(always=tuple(range(900, 1000)), by_source=by_source)
    assert shortlist.allowed([3], most=110) == {*range(900, 1000), 3, *range(1150, 1159)}, "the best first"
    assert len(shortlist.allowed(range(10))) == len(shortlist.allowed(range(10), given=range(500, 540))) == 256
    for length in (100, 200, 300):
        found = shortlist.allowed(range(length))
        assert len(found) == 100 + length + 4 * length
        assert all(set(by_source[source][:4]) <= found for source in range(length))


def test_a_shortlist_without_an_order_allows_all_that_a_source_lists():
    by_source = {source: tuple(range(1000 + 50 * source, 1050 + 50 * source)) for source in range(300)}
    shortlist = Shortlist(always=(900,), by_source=by_source, is_ranked=False)
    assert len(shortlist.allowed(range(10))) == 1 + 10 + 500
    assert len(shortlist.allowed(range(100))) <= 1 + 100 * shortlist.longest == 1 + 100 * 51
    assert dataclasses.replace(shortlist, is_ranked=True).longest == 0


def test_a_variant_is_found_by_its_precision():
    manifest = a_manifest()
    assert manifest.variant("fp32") is manifest.variants[0]
    with pytest.raises(KeyError, match="no int8 graphs here; there are: fp32"):
        manifest.variant("int8")


def test_json_has_every_field_and_no_nan():
    manifest = a_manifest()
    values = json.loads(manifest.to_json())
    assert list(values) == [field.name for field in dataclasses.fields(Manifest)]
    assert values["variants"][0]["states"][0]["shape"] == ["batch", 2, "capacity", 8]
    with pytest.raises(ValueError, match="Out of range float"):
        dataclasses.replace(manifest, lineage={"loss": float("nan")}).to_json()


@pytest.mark.parametrize(("stride", "positions", "places"), [(1, 7, 7), (3, 6, 2), (3, 7, 3), (3, 0, 0)])
def test_a_cache_with_a_stride_has_a_place_for_each_part_of_it(stride, positions, places):
    state = StateSpec(name="self_key.0", kind="self_kv", dtype="float32", shape=("batch", 1), stride=stride)
    assert state.places(positions) == places


def test_the_slots_of_a_variant_are_those_of_its_caches_with_a_stride():
    (variant,) = a_manifest().variants
    assert variant.slots(7) == 0
    strided = dataclasses.replace(variant.states[0], stride=3)
    assert dataclasses.replace(variant, states=(*variant.states, strided)).slots(7) == 3


def test_capacities_grow_in_small_steps():
    steps = sorted({capacity_for(length) for length in range(1, 300)})
    assert steps == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
    assert all(length <= capacity_for(length) < max(2 * length, 9) for length in range(1, 5000))


def test_no_capacity_of_a_row_with_a_padded_block_is_above_the_largest():
    for max_target_len in range(1, 600):
        padded = -(-max_target_len // PAD_MULTIPLE) * PAD_MULTIPLE
        assert max(capacity_for(length) for length in range(1, padded + 1)) == largest_capacity(max_target_len)


def test_any_of_several_tokens_ends_a_response():
    assert Tokens(pad=0, bos=1, eos=2, unk=3, extra_eos=(7, 5)).ends == (2, 7, 5)
