import contextlib
import dataclasses
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.architecture_config import (
    CLASSES,
    DecoderConfig,
    EncoderDecoderConfig,
    Head,
    Pooler,
    Positions,
    Sinusoids,
    model_config,
)
from model.config import ConfigError, SpecialTokenTemplate, field_types

COMPRESSED = {"architecture": "decoder", "compression_stride": 3, "sliding_window": 8}
GROUPS = {"architecture": "decoder", "positions": "rotary"}
WRONG = [
    ("activation", "tanh", "must be one of relu, gelu, gelu_tanh, silu, got 'tanh'"),
    ("norm", "batch", "must be one of layer, rms, got 'batch'"),
    ("norm_position", "both", "must be one of pre, post, res_post, sandwich, got 'both'"),
    ("positions", "relative", f"must be one of {', '.join(get_args(Positions))}, got 'relative'"),
    ("positions", ["rotary"], f"must be one of {', '.join(get_args(Positions))}, got ['rotary']"),
    ("position_dim", -2, "must be at least 0, got -2"),
    ("position_dim", 7, "must be even for sinusoidal positions, got 7"),
    (
        "position_dim",
        256,
        "must be below d_model 256 and goes with sinusoidal or learned positions, got 256 with sinusoidal",
    ),
    ("position_range", 0, "must be at least 1, got 0"),
    ("position_buckets", 3, "must be at least 4, got 3"),
    ("parallel_residual", "yes", "must be true or false, got 'yes'"),
    ("attention_scale", -1.0, "must be at least 0, got -1.0"),
    ("sliding_window", -1, "must be at least 0, got -1"),
    ("qk_norm", 1, "must be true or false, got 1"),
    ("rotary_dims", -2, "must be at least 0, got -2"),
    ("qk_norm_span", "heads", "must be one of head, all, got 'heads'"),
    ("qk_norm_after_rotary", 1, "must be true or false, got 1"),
    ("attention_softcap", -1.0, "must be at least 0, got -1.0"),
    ("logits_softcap", "30", "must be a number, got '30'"),
    ("layer_groups", 5, "must be a list of objects with layers, got 5"),
    ("rotary_amplitude", 0.0, "must be above 0, got 0.0"),
    ("rotary_scaling", "dynamic", "must be one of none, linear, llama3, yarn, longrope, got 'dynamic'"),
    ("rotary_factors", (1.0,), "must be 0 numbers above 0, got 1"),
    ("rotary_factor", 0.5, "must be at least 1, got 0.5"),
    ("rotary_low_freq", 5.0, "must be above 0 and below rotary_high_freq 4.0, got 5.0"),
    ("rotary_high_freq", math.nan, "must be finite, got nan"),
    ("rotary_original_len", 0, "must be at least 1, got 0"),
    ("embedding_scale", -1.0, "must be at least 0, got -1.0"),
    ("embedding_norm", 1, "must be true or false, got 1"),
    ("qkv_bias", 1, "must be true or false, got 1"),
    ("output_bias", 1, "must be true or false, got 1"),
    ("share_embeddings", 1, "must be true or false, got 1"),
    ("decoder_mixing", "gru", "must be one of attention, ssru, got 'gru'"),
    ("sinusoids", "both", f"must be one of {', '.join(get_args(Sinusoids))}, got 'both'"),
    ("head", "tail", f"must be one of {', '.join(get_args(Head))}, got 'tail'"),
    ("pooler", "mean", f"must be one of {', '.join(get_args(Pooler))}, got 'mean'"),
    ("extra_eos_ids", (5, -1), "must be token ids, got -1"),
    ("extra_eos_ids", 5, "must be a list of token ids, got 5"),
    ("labels", ("a", "b"), "go with head classify, attention or tokens, got head none"),
    ("multi_label", 1, "must be true or false, got 1"),
    ("pooling", "sum", "must be one of mean, cls, max, last, mean_sqrt_len, weighted_mean, got 'sum'"),
    ("dense", 5, "must be a list of objects with size, got 5"),
    ("prompts", (("query",),), "must be pairs of a name and a text, got (('query',),)"),
    ("default_prompt", "query", "must be left out without prompts, got 'query'"),
    ("default_prompt", None, "must be left out without prompts, got None"),
    ("pools_prompt", "no", "must be true or false, got 'no'"),
    ("normalized", "yes", "must be true or false, got 'yes'"),
    ("source_unit", "page", "must be one of sentence, text, got 'page'"),
    ("source_language", "a b", "must be a code of letters, digits, - and _, at most 64, got 'a b'"),
    ("target_language", 5, "must be a code of letters, digits, - and _, at most 64, got 5"),
    ("mask_id", -1, "must be a token or left out, got -1"),
    ("context_sentences", 9, "must be 0..8, got 9"),
    ("separator_id", "4", "must be a token or left out, got '4'"),
    ("special_token_template", (1,), "must be a SpecialTokenTemplate or left out, got (1,)"),
    ("vocab_size", -1, "must be at least 0, got -1"),
    ("d_model", 0, "must be at least 1, got 0"),
    ("d_model", 256.0, "must be a whole number, got 256.0"),
    ("d_model", "256", "must be a whole number, got '256'"),
    ("d_model", True, "must be a whole number, got True"),
    ("num_heads", 0, "must be at least 1, got 0"),
    ("num_heads", 3, "must divide d_model 256 unless head_dim is set, got 3"),
    ("num_kv_heads", -1, "must be at least 0, got -1"),
    ("num_kv_heads", 3, "must divide num_heads 4, got 3"),
    ("num_kv_heads", 8, "must divide num_heads 4, got 8"),
    ("head_dim", -1, "must be at least 0, got -1"),
    ("d_ff", 0, "must be at least 1, got 0"),
    ("num_encoder_layers", 0, "must be at least 1, got 0"),
    ("num_decoder_layers", 0, "must be at least 1, got 0"),
    ("gated", 1, "must be true or false, got 1"),
    ("ensemble_size", 0, "must be at least 1, got 0"),
    ("num_experts", -1, "must be at least 0, got -1"),
    ("experts_per_token", 2, "must be 1..1, got 2"),
    ("first_attention_norm", False, "must be true without embedding_norm and norm_position pre, got false"),
    ("compression_stride", -1, "must be at least 0, got -1"),
    ("compression_stride", 1, "must be 0 or at least 2, got 1"),
    ("encoder_num_heads", 3, "must divide d_model 256 unless head_dim is set, got 3"),
    ("encoder_d_ff", -1, "must be at least 0, got -1"),
    ("source_vocab_size", -1, "must be at least 0, got -1"),
    ("bias", None, "must be true or false, got None"),
    ("tie_embeddings", "yes", "must be true or false, got 'yes'"),
    ("norm_eps", 0.0, "must be above 0, got 0.0"),
    ("norm_eps", math.nan, "must be finite, got nan"),
    ("rotary_base", 0.5, "must be at least 1, got 0.5"),
    ("rotary_base", math.inf, "must be finite, got inf"),
    ("dropout", -0.1, "must be 0.0..0.99, got -0.1"),
    ("dropout", 1.0, "must be 0.0..0.99, got 1.0"),
    ("dropout", "0.1", "must be a number, got '0.1'"),
    ("dropout", False, "must be a number, got False"),
    ("max_source_len", 0, "must be at least 1, got 0"),
    ("max_target_len", 0, "must be at least 1, got 0"),
    ("pad_id", -1, "must be at least 0, got -1"),
    ("bos_id", -1, "must be at least 0, got -1"),
    ("eos_id", -1, "must be at least 0, got -1"),
    ("unk_id", -1, "must be at least 0, got -1"),
    ("cell", "rnn", "must be one of lstm, gru, got 'rnn'"),
    ("score", "cosine", "must be one of none, dot, multiplicative, additive, got 'cosine'"),
    ("input_feeding", 1, "must be true or false, got 1"),
    ("bidirectional", "no", "must be true or false, got 'no'"),
    ("encoder_dim", -2, "must be at least 0, got -2"),
    ("attention_dim", -1, "must be at least 0, got -1"),
]


TWO = {"vocab_size": 9, "source_vocab_size": 5, "share_embeddings": False}


@pytest.mark.parametrize(("field", "value", "problem"), WRONG)
def test_a_wrong_value_is_refused_with_field_value_and_limit(field, value, problem):
    users = [config for config in CLASSES.values() if field in field_types(config)]
    for config in users:
        with pytest.raises(ConfigError) as caught:
            config(**{field: value})
        assert caught.value.field == field
        assert str(caught.value) == f"{field}: {problem}"
    assert users


def test_every_field_has_a_wrong_value_above():
    fields = {name for config in CLASSES.values() for name in field_types(config)}
    assert {field for field, _, _ in WRONG} == fields


def test_an_unknown_architecture_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        model_config({"architecture": "rnn"})
    assert str(caught.value) == ("architecture: must be one of encoder_decoder, decoder, encoder, recurrent, got 'rnn'")


@pytest.mark.parametrize(
    ("architecture", "field", "fix"),
    [
        ("encoder_decoder", "head", "leave it out, or choose encoder"),
        ("decoder", "max_source_len", "leave it out, or choose encoder_decoder or encoder or recurrent"),
        ("decoder", "encoder_d_ff", "leave it out, or choose encoder_decoder"),
        ("encoder", "num_decoder_layers", "leave it out, or choose encoder_decoder or decoder or recurrent"),
        ("recurrent", "sliding_window", "leave it out, or choose encoder_decoder or decoder or encoder"),
        ("recurrent", "d_ff", "leave it out, or choose encoder_decoder or decoder or encoder"),
        ("encoder_decoder", "compression_stride", "leave it out, or choose decoder"),
        ("encoder_decoder", "parallel_residual", "leave it out, or choose decoder"),
        ("decoder", "mask_id", "leave it out, or choose encoder"),
    ],
)
def test_a_field_of_another_architecture_is_refused(architecture, field, fix):
    with pytest.raises(ConfigError) as caught:
        model_config({"architecture": architecture, field: 1})
    assert str(caught.value) == f"{field}: architecture {architecture} does not use it; {fix}"


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize(
    "value", [5, 1.5, True, None, "de", [], [5], ["de"], [[5]], [["de"]], [["de", 5, 6]], {}, {"a": 5}]
)
def test_a_value_of_another_type_raises_nothing_but_a_config_error(architecture, value):
    values = [{name: value} for name in ("architecture", *field_types(CLASSES[architecture]))]
    for part in field_types(SpecialTokenTemplate):
        values.append({"special_token_template": {part: value}})
    for fields in values:
        with contextlib.suppress(ConfigError):
            model_config({"architecture": architecture, **fields})


def test_the_architecture_of_a_configuration_cannot_be_replaced():
    with pytest.raises(ConfigError, match="architecture: must be decoder, got 'encoder'"):
        DecoderConfig().replace(architecture="encoder")


def test_the_encoder_of_a_translation_model_may_differ_in_heads_and_width():
    config = EncoderDecoderConfig(d_model=48, num_heads=4, d_ff=64, encoder_num_heads=6, encoder_d_ff=96)
    encoder = config.encoder_stack
    assert (config.attention_head_dim, config.d_ff, encoder.attention_head_dim, encoder.d_ff) == (12, 64, 8, 96)
    assert encoder.attention_kv_heads == 6
    assert EncoderDecoderConfig(d_ff=64).encoder_stack.d_ff == 64
    with pytest.raises(ConfigError, match="encoder_num_heads: must be a multiple of num_kv_heads 4, got 2"):
        EncoderDecoderConfig(num_heads=4, num_kv_heads=4, encoder_num_heads=2)
    with pytest.raises(ConfigError, match="head_dim: must be even and at most head_dim 3 for rotary positions, got 3"):
        EncoderDecoderConfig(d_model=24, num_heads=4, encoder_num_heads=8, positions="rotary")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary", "head_dim": 5}, "head_dim: must be even and at most head_dim 5 for rotary positions"),
        ({"d_model": 12, "positions": "rotary"}, "head_dim: must be even and at most head_dim 3 for rotary positions"),
        ({"positions": "rotary", "rotary_dims": 66}, "rotary_dims: must be even and at most head_dim 64"),
        ({"position_dim": 16}, "tie_embeddings: must be false with position_dim"),
        ({"position_dim": 16, "positions": "rotary"}, "position_dim: must be below d_model 256 and goes with"),
        ({"positions": "bucketed", "position_range": 16}, "position_range: must be above half of position_buckets"),
        (
            {**COMPRESSED, "num_decoder_layers": 1},
            "compression_stride: needs at least 2 layers, got 1",
        ),
        ({**GROUPS, "layer_groups": [{"layers": []}]}, "layer_groups[0].layers: must be numbers 0..2 of layers, each"),
        ({**GROUPS, "layer_groups": [{"layers": [1]}, {"layers": [1]}]}, "layer_groups[1].layers: must be numbers 0.."),
        ({**GROUPS, "layer_groups": [{"layers": [3]}]}, "layer_groups[0].layers: must be numbers 0..2 of layers"),
        (
            {**GROUPS, "layer_groups": [{"sliding_window": 3}]},
            "layer_groups[0].layers: must be numbers 0..2 of layers, each once, got ()",
        ),
        ({**GROUPS, "layer_groups": [{"layers": [1], "norm": "rms"}]}, "layer_groups[0].norm: unknown key"),
        (
            {**GROUPS, "layer_groups": [{"layers": [1], "sliding_window": -1}]},
            "layer_groups[0].sliding_window: must be",
        ),
        ({**GROUPS, "layer_groups": [3]}, "layer_groups[0]: must be an object with layers, got 3"),
        (
            {**GROUPS, "positions": "alibi", "layer_groups": [{"layers": [1], "positions": "none"}]},
            "layer_groups[0]: must differ in sliding_window alone without rotary positions, got {'positions': 'none'}",
        ),
        ({**COMPRESSED, "attention_softcap": 1.0}, "attention_softcap: must be left out with compression_stride"),
        ({**COMPRESSED, "sliding_window": 0}, "sliding_window: must be set with compression_stride"),
        (
            {**COMPRESSED, "positions": "rotary"},
            "positions: must be sinusoidal, learned or none with compression_stride",
        ),
        (
            {"architecture": "decoder", "parallel_residual": True, "norm_position": "post"},
            "parallel_residual: needs norm_position pre, got post",
        ),
        (
            {"vocab_size": 9, "special_token_template": SpecialTokenTemplate(target_prefix=(9,))},
            "special_token_template: must hold tokens below vocab_size 9, got 9",
        ),
        ({"d_model": 7, "head_dim": 4}, "d_model: must be even for sinusoidal positions, got 7"),
        ({"vocab_size": 3}, "unk_id: must be below vocab_size 3, got 3"),
        ({**TWO, "share_embeddings": True}, "share_embeddings: must be left out with source_vocab_size"),
        ({**TWO, "context_sentences": 1}, "context_sentences: must be left out with source_vocab_size"),
        ({**TWO, "pad_id": 5}, "pad_id: must be below source_vocab_size 5, got 5"),
        (
            {**TWO, "special_token_template": SpecialTokenTemplate(source_prefix=(5,), target_prefix=(8,))},
            "special_token_template: must hold tokens of sources below source_vocab_size 5, got 5",
        ),
        (
            {**TWO, "source_vocab_size": 12, "special_token_template": SpecialTokenTemplate(target_prefix=(9,))},
            "special_token_template: must hold tokens of targets below vocab_size 9, got 9",
        ),
        (
            {**TWO, "special_token_template": SpecialTokenTemplate(target_prefix=(-2,), languages=(("de", 4),))},
            "special_token_template: must hold tokens of targets below vocab_size 9, got -2",
        ),
        ({"vocab_size": 10, "eos_id": 10}, "eos_id: must be below vocab_size 10, got 10"),
        (
            {"vocab_size": 10, "separator_id": 10},
            "separator_id: must be a token below vocab_size 10 or left out, got 10",
        ),
        ({"vocab_size": 10, "extra_eos_ids": (5, 12)}, "extra_eos_ids: must be token ids below vocab_size 10, got 12"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        model_config(changes)
    assert str(caught.value).startswith(message)


def test_a_model_whose_special_tokens_coincide_can_be_trained():
    EncoderDecoderConfig(bos_id=0, unk_id=2).check_trainable()  # as in T5
    bare = SpecialTokenTemplate(target_prefix=())
    DecoderConfig(pad_id=2, bos_id=2, unk_id=2, special_token_template=bare).check_trainable()  # as in GPT-2


def test_context_needs_a_token_between_sentences():
    config = EncoderDecoderConfig(context_sentences=2, separator_id=4)
    config.check_trainable()
    for separator in (None, config.unk_id):
        with pytest.raises(ConfigError, match="separator_id: must be a token of its own with context, got"):
            config.replace(separator_id=separator).check_trainable()


def test_a_decoder_has_no_encoder():
    assert not DecoderConfig().has_encoder


def test_derived_sizes_follow_the_fields():
    assert EncoderDecoderConfig(d_model=96, num_heads=4).attention_head_dim == 24
    assert EncoderDecoderConfig(d_model=96, num_heads=5, head_dim=16).attention_head_dim == 16
    assert EncoderDecoderConfig(num_heads=8).attention_kv_heads == 8
    assert EncoderDecoderConfig(num_heads=8, num_kv_heads=2).attention_kv_heads == 2


def test_a_configuration_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(EncoderDecoderConfig(), "d_model", 8)  # noqa: B010 (the plain assignment is a type error)
    assert all(field.kw_only for field in dataclasses.fields(EncoderDecoderConfig))


def test_replace_checks_the_result_and_leaves_the_original():
    config = EncoderDecoderConfig()
    assert config.replace(vocab_size=500).vocab_size == 500
    assert config.vocab_size == 0
    with pytest.raises(ConfigError, match=r"^num_heads: "):
        config.replace(d_model=255, positions="learned")
    with pytest.raises(ConfigError, match=r"^heads: unknown key; did you mean"):
        config.replace(heads=2)


@settings(max_examples=40)
@given(
    architecture=st.sampled_from(["encoder_decoder", "decoder"]),
    heads=st.sampled_from([1, 2, 4, 8]),
    groups=st.sampled_from([0, 1]),
    width=st.integers(1, 16).map(lambda n: 2 * n),
    dropout=st.one_of(st.integers(0, 0), st.floats(0, 0.99)),
    positions=st.sampled_from(["sinusoidal", "learned", "rotary"]),
)
def test_json_both_ways_gives_the_same_configuration(architecture, heads, groups, width, dropout, positions):
    made: Any = CLASSES[architecture]
    config = made(
        d_model=heads * width,
        num_heads=heads,
        num_kv_heads=groups,
        dropout=dropout,
        positions=positions,
    )
    assert model_config(json.loads(json.dumps(config.to_json()))) == config


def test_a_special_token_template_without_a_start_cannot_be_trained():
    with pytest.raises(ConfigError, match=r"^special_token_template: must have a target prefix"):
        EncoderDecoderConfig(special_token_template=SpecialTokenTemplate()).check_trainable()
    EncoderDecoderConfig(special_token_template=SpecialTokenTemplate(target_prefix=(1, 4))).check_trainable()
