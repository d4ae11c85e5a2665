import dataclasses
import json
import math
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import (
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    ConfigError,
    Head,
    LanguagePair,
    ModelConfig,
    Pooler,
    Positions,
    Sinusoids,
    SpecialTokenTemplate,
)

COMPRESSED = {"architecture": "decoder", "compression_stride": 3, "sliding_window": 8}
WRONG = [
    ("architecture", "rnn", "must be one of encoder_decoder, decoder, encoder, recurrent, got 'rnn'"),
    ("activation", "tanh", "must be one of relu, gelu, gelu_tanh, silu, got 'tanh'"),
    ("norm", "batch", "must be one of layer, rms, got 'batch'"),
    ("norm_position", "both", "must be one of pre, post, got 'both'"),
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
    ("rotary_scaling", "dynamic", "must be one of none, linear, llama3, got 'dynamic'"),
    ("rotary_factor", 0.5, "must be at least 1, got 0.5"),
    ("rotary_low_freq", 5.0, "must be above 0 and below rotary_high_freq 4.0, got 5.0"),
    ("rotary_high_freq", math.nan, "must be finite, got nan"),
    ("rotary_original_len", 0, "must be at least 1, got 0"),
    ("embedding_scale", -1.0, "must be at least 0, got -1.0"),
    ("embedding_norm", 1, "must be true or false, got 1"),
    ("qkv_bias", 1, "must be true or false, got 1"),
    ("output_bias", 1, "must be true or false, got 1"),
    ("share_embeddings", 1, "must be true or false, got 1"),
    ("sinusoids", "both", f"must be one of {', '.join(get_args(Sinusoids))}, got 'both'"),
    ("head", "tail", f"must be one of {', '.join(get_args(Head))}, got 'tail'"),
    ("head", "masked", "is of architecture encoder, not encoder_decoder, got 'masked'"),
    ("pooler", "mean", f"must be one of {', '.join(get_args(Pooler))}, got 'mean'"),
    ("extra_eos_ids", (5, -1), "must be token ids, got -1"),
    ("labels", ("a", "b"), "is of architecture encoder, not encoder_decoder, got ('a', 'b')"),
    ("multi_label", 1, "must be true or false, got 1"),
    ("mask_id", -1, "must be a token or left out, got -1"),
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
    ("num_experts", -1, "must be at least 0, got -1"),
    ("experts_per_token", 2, "must be 1..1, got 2"),
    ("compression_stride", -1, "must be at least 0, got -1"),
    ("compression_stride", 1, "must be 0 or at least 2, got 1"),
    ("compression_stride", 3, "needs a decoder-only model of at least 2 layers, got encoder_decoder and 3"),
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


@pytest.mark.parametrize(("field", "value", "problem"), WRONG)
def test_a_wrong_value_is_refused_with_field_value_and_limit(field, value, problem):
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**{field: value})
    assert caught.value.field == field
    assert str(caught.value) == f"{field}: {problem}"


def test_every_field_has_a_wrong_value_above():
    assert {field for field, _, _ in WRONG} == {field.name for field in dataclasses.fields(ModelConfig)}


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
            "compression_stride: needs a decoder-only model of at least 2 layers",
        ),
        ({**COMPRESSED, "sliding_window": 0}, "sliding_window: must be set with compression"),
        ({**COMPRESSED, "positions": "rotary"}, "positions: must be sinusoidal, learned or none with compression"),
        ({"parallel_residual": True}, "parallel_residual: needs a decoder-only model with pre-norm"),
        (
            {"vocab_size": 9, "special_token_template": SpecialTokenTemplate(target_prefix=(9,))},
            "special_token_template: must hold tokens below vocab_size 9, got 9",
        ),
        ({"d_model": 7, "head_dim": 4}, "d_model: must be even for sinusoidal positions, got 7"),
        ({"vocab_size": 3}, "unk_id: must be below vocab_size 3, got 3"),
        ({"vocab_size": 10, "eos_id": 10}, "eos_id: must be below vocab_size 10, got 10"),
        ({"vocab_size": 10, "extra_eos_ids": (5, 12)}, "extra_eos_ids: must be token ids below vocab_size 10, got 12"),
    ],
)
def test_values_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("num_head", "unknown key; did you mean 'num_heads'?"),
        ("d_modle", "unknown key; did you mean 'd_model'?"),
        ("norm_postion", "unknown key; did you mean 'norm_position'?"),
    ],
)
def test_a_mistyped_key_gets_a_suggestion(key, problem):
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_json({key: 1})
    assert (caught.value.field, caught.value.problem) == (key, problem)


def test_a_key_like_no_other_gets_the_list_of_keys():
    with pytest.raises(
        ConfigError, match=r"zzz: unknown key; known keys: activation, architecture, attention_dim, .*vocab_size$"
    ):
        ModelConfig.from_json({"zzz": 1})


def test_a_model_whose_special_tokens_coincide_is_not_for_training():
    config = ModelConfig(bos_id=2)
    with pytest.raises(ConfigError, match="pad_id: pad, bos, eos and unk must be four different tokens, got "):
        config.check_trainable()
    ModelConfig().check_trainable()


def test_a_framing_survives_json_and_follows_the_special_tokens_when_there_is_none():
    assert ModelConfig(bos_id=5, eos_id=6).template == SpecialTokenTemplate(source_suffix=(6,), target_prefix=(5,))
    template = SpecialTokenTemplate(
        source_prefix=(SOURCE_LANGUAGE,), target_prefix=(2, TARGET_LANGUAGE), languages=(("de", 7),)
    )
    config = ModelConfig(special_token_template=template)
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.template.token_ids == {2, 7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_prefix": (-3,)}, "target_prefix: must be a list of token ids"),
        ({"source_suffix": (TARGET_LANGUAGE,)}, "source_suffix: names a language, and there are none"),
        ({"languages": (("de", -1),)}, "languages: must be pairs of a code and a token id"),
    ],
)
def test_a_wrong_framing_is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        SpecialTokenTemplate(**changes)
    assert str(caught.value).startswith(message)


def test_an_encoders_fields_do_not_bind_a_decoder():
    config = ModelConfig(architecture="decoder", num_encoder_layers=0, max_source_len=0)
    assert not config.has_encoder


def test_derived_sizes_follow_the_fields():
    assert ModelConfig(d_model=96, num_heads=4).attention_head_dim == 24
    assert ModelConfig(d_model=96, num_heads=5, head_dim=16).attention_head_dim == 16
    assert ModelConfig(num_heads=8).attention_kv_heads == 8
    assert ModelConfig(num_heads=8, num_kv_heads=2).attention_kv_heads == 2


def test_a_configuration_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(ModelConfig(), "d_model", 8)  # noqa: B010 (the plain assignment is a type error)
    assert all(field.kw_only for field in dataclasses.fields(ModelConfig))


def test_replace_checks_the_result_and_leaves_the_original():
    config = ModelConfig()
    assert config.replace(vocab_size=500).vocab_size == 500
    assert config.vocab_size == 0
    with pytest.raises(ConfigError, match=r"^num_heads: "):
        config.replace(d_model=255, positions="learned")
    with pytest.raises(ConfigError, match=r"^heads: unknown key; did you mean"):
        config.replace(heads=2)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    architecture=st.sampled_from(["encoder_decoder", "decoder"]),
    heads=st.sampled_from([1, 2, 4, 8]),
    groups=st.sampled_from([0, 1]),
    width=st.integers(1, 16).map(lambda n: 2 * n),
    dropout=st.one_of(st.integers(0, 0), st.floats(0, 0.99)),
    positions=st.sampled_from(["sinusoidal", "learned", "rotary"]),
)
def test_json_both_ways_gives_the_same_configuration(architecture, heads, groups, width, dropout, positions):
    config = ModelConfig(
        architecture=architecture,
        d_model=heads * width,
        num_heads=heads,
        num_kv_heads=groups,
        dropout=dropout,
        positions=positions,
    )
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_reading_a_configuration_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from model.config import ModelConfig; ModelConfig()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_texts_are_framed_with_their_languages():
    template = SpecialTokenTemplate(
        source_prefix=(SOURCE_LANGUAGE,),
        source_suffix=(2,),
        target_prefix=(2, TARGET_LANGUAGE),
        languages=(("de", 7), ("en", 8)),
    )
    into = LanguagePair("en", "de")
    assert (template.wrap_source([4, 5], into), template.wrap_prompt([], into)) == ([8, 4, 5, 2], [2, 7])
    assert (template.wrap_source([4]), template.wrap_prompt([6])) == ([7, 4, 2], [2, 7, 6])  # the first language it has
    assert template.num_source_special == 2
    with pytest.raises(ConfigError, match=r"languages: 'dee': unknown language; did you mean 'de'\?"):
        template.wrap_prompt([], LanguagePair(target="dee"))
    plain = ModelConfig().template
    assert (plain.wrap_source([4]), plain.wrap_prompt(), plain.num_source_special) == ([4, 2], [1], 1)


@pytest.mark.parametrize(
    "template",
    [SpecialTokenTemplate(), SpecialTokenTemplate(target_prefix=(TARGET_LANGUAGE,), languages=(("de", 7),))],
    ids=["bare", "languages"],
)
def test_frames_that_training_could_not_fill_are_refused(template):
    with pytest.raises(ConfigError, match=r"^special_token_template: must have"):
        ModelConfig(special_token_template=template).check_trainable()
    ModelConfig(special_token_template=SpecialTokenTemplate(target_prefix=(1, 4))).check_trainable()
