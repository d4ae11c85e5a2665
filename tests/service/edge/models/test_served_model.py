import dataclasses
import json

import pytest

from export.bundle.manifest import Context, Encoding, Quantization, SpecialTokenTemplate, Variant
from model.tokenizer import Tokenizer
from tests.edge import GENERATION, TRANSLATION, manifest


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 2)])
def test_special_tokens_have_empty_spans_at_the_ends_of_the_source(before, after):
    template = SpecialTokenTemplate(source_prefix=(3,) * before, source_suffix=(2,) * after, target_prefix=(1,))
    model = dataclasses.replace(TRANSLATION, manifest=manifest(template=template))
    text = "a black cat"
    words = [(0, 1), (1, 7), (7, 11)]
    assert model.source_spans(text) == [*[(0, 0)] * before, *words, *[(len(text), len(text))] * after]


@pytest.mark.parametrize(
    ("source", "expected"), [((9, 2), ()), ((9, 5, 6, 2), (5, 6)), ((9, 5, 4, 6, 4, 7, 8, 2), (7, 8))]
)
def test_the_tokens_of_a_text_are_without_special_ones_and_context(source, expected):
    template = SpecialTokenTemplate(source_prefix=(9,), source_suffix=(2,), target_prefix=(1,))
    context = Context(sentences=2, separator=4)
    model = dataclasses.replace(TRANSLATION, manifest=manifest(template=template, context=context))
    assert model.text_tokens(source) == expected
    plain = dataclasses.replace(TRANSLATION, manifest=manifest(template=template))
    assert plain.text_tokens(source) == source[1:-1]


def test_the_spans_of_an_answer_are_parts_of_its_text():
    text = "zwei rote Häuser"
    tokens = (*TRANSLATION.tokenizer.encode(text), 2)
    assert [text[start:end] for start, end in TRANSLATION.target_spans(tokens, text)] == [
        "zwei",
        " rote",
        " Häuser",
        "",
    ]


def test_tokens_of_two_vocabularies_are_named_by_their_side():
    sources, targets = (Tokenizer.train([text], kind="words", vocab_size=9) for text in ("a b c", "a x y z"))
    values, other = json.loads(sources.to_json().replace("<eos>", "</s>")), json.loads(targets.to_json())
    values["model"]["target"] = {name: part for name, part in other.items() if name != "version"}
    tokenizer = Tokenizer(values, vocab_size=11, source_vocab_size=9)
    limits = dataclasses.replace(TRANSLATION.manifest.limits, vocab_size=11, source_vocab_size=9)
    model = dataclasses.replace(TRANSLATION, manifest=manifest(limits=limits), tokenizer=tokenizer)
    assert model.token_names([4, 5, 6, 2, 8]) == [" a", " b", " c", "</s>", "<8>"]
    assert model.token_names([4, 5, 6, 7, 2, 10], is_target=True) == [" a", " x", " y", " z", "<eos>", "<10>"]
    assert model.source_spans("b c") == [(0, 1), (1, 3), (3, 3)]
    assert model.target_spans([7, 5, 2], "z x") == ((0, 1), (1, 3), (3, 3))


def test_a_token_without_text_has_the_name_of_its_role_or_of_its_tokenizer():
    tokenizer = Tokenizer.train(["a b"], kind="words", vocab_size=9, with_mask=True)
    tokens = dataclasses.replace(TRANSLATION.manifest.tokens, unk=2, bos=0)  # as MarianMT, which has neither
    model = dataclasses.replace(TRANSLATION, manifest=manifest(tokens=tokens), tokenizer=tokenizer)
    assert model.token_names([0, 1, 2, 3, 4], is_target=True) == ["<bos>", "<bos>", "<eos>", "<unk>", "<mask>"]


def test_the_last_new_token_takes_no_position():
    for model in (TRANSLATION, GENERATION):
        limit = model.manifest.limits.max_target_len
        assert model.max_new_tokens(1) == model.max_tokens == limit
        assert model.max_new_tokens(limit) == 1


def test_a_text_fills_the_source_or_the_context():
    assert TRANSLATION.max_prompt_tokens == TRANSLATION.manifest.limits.max_source_len
    assert GENERATION.max_prompt_tokens == GENERATION.manifest.limits.max_target_len
    assert (TRANSLATION.has_source, GENERATION.has_source) == (True, False)


def test_a_model_without_a_decoder_starts_from_nothing():
    limits = dataclasses.replace(TRANSLATION.manifest.limits, max_target_len=0)
    encoder = dataclasses.replace(TRANSLATION, manifest=manifest(limits=limits))
    assert (encoder.decoder_start, TRANSLATION.decoder_start) == ((), (1,))


def test_a_model_with_labels_is_a_classifier():
    assert not TRANSLATION.is_classifier
    for labels in ((), ("good", "bad")):
        encoding = Encoding(width=8, labels=labels)
        model = dataclasses.replace(TRANSLATION, manifest=manifest(encoding=encoding))
        assert model.is_classifier == bool(labels)
        assert model.mask_token == ""


@pytest.mark.parametrize("is_batch_invariant", [True, False])
def test_quantization_is_that_of_the_precision_in_use(is_batch_invariant):
    scheme = Quantization(
        scheme="w8a8-dynamic",
        weight_bits=8,
        block_size=0,
        activations="dynamic",
        kv_cache="float32",
        batch_invariant=True,
    )
    variants = (
        Variant(precision="fp32", graphs={}, states=()),
        Variant(precision="int8", graphs={}, states=(), quantization=scheme),
    )
    plain = dataclasses.replace(
        TRANSLATION, manifest=manifest(variants=variants), is_batch_invariant=is_batch_invariant
    )
    int8 = dataclasses.replace(plain, choice=dataclasses.replace(plain.choice, precision="int8"))
    assert plain.quantization is plain.quantization_measurement is None
    assert int8.quantization == dataclasses.replace(scheme, batch_invariant=is_batch_invariant)
