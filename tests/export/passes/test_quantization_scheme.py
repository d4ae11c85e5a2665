"""The schemes as data."""

from export.passes.quantization_scheme import INVARIANT_BLOCKS, SCHEMES


def test_which_schemes_have_blocks_too_large_for_batch_invariance():
    blocks = {name: scheme for name, scheme in SCHEMES.items() if scheme.block_size}
    assert {name for name, scheme in blocks.items() if scheme.block_size > INVARIANT_BLOCKS[scheme.weight_bits]} == {
        "w4-block128"
    }
    assert SCHEMES["fp32"].quantization(batch_invariant=True) is None


def test_blocks_are_for_decode_only_and_attend_keeps_no_cache():
    assert SCHEMES["w4-block32"].for_role("decode") is SCHEMES["w4-block32"]
    assert SCHEMES["w4-block32"].for_role("encode") is SCHEMES["w8a8-dynamic"]
    assert SCHEMES["w8a8-static-kv8"].for_role("encode") is SCHEMES["w8a8-static-kv8"]
    assert not SCHEMES["w8a8-static-kv8"].for_role("attend").has_int8_cache


def test_only_constant_steps_need_calibration():
    assert {name for name, scheme in SCHEMES.items() if scheme.needs_ranges} == {
        "w8a8-static",
        "w8a8-dynamic-kv8",
        "w8a8-static-kv8",
    }


def test_names_are_those_of_the_manifest():
    assert all(name == scheme.name for name, scheme in SCHEMES.items())
    entry = SCHEMES["w8a8-dynamic-kv8"].quantization(batch_invariant=True)
    assert entry is not None
    assert (entry.weight_bits, entry.activations, entry.kv_cache) == (8, "dynamic", "int8")
