"""From a model to a bundle: what is in it, and what is refused before and after."""

from export.bundle import load_bundle


def test_a_bundle_is_complete_and_verified(tiny_translation_bundle, tiny_generation_bundle):
    translation, generation = load_bundle(tiny_translation_bundle), load_bundle(tiny_generation_bundle)
    assert translation.task == "translation"
    assert generation.task == "generation"
    assert list(translation.files) == ["fp32/decode.onnx", "fp32/encode.onnx", "tokenizer.json"]
    assert list(generation.files) == ["fp32/decode.onnx", "tokenizer.json"]
    assert (translation.limits.max_block, generation.limits.max_block) == (1, 0)
    assert {state.kind for state in translation.variant("fp32").states} == {"self_kv", "cross_kv"}
    assert {state.kind for state in generation.variant("fp32").states} == {"self_kv"}
