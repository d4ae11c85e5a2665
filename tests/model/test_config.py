import json
import subprocess
import sys

import pytest

from model.architecture_config import EncoderDecoderConfig, model_config
from model.config import (
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    ConfigError,
    LanguagePair,
    SpecialTokenTemplate,
)


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
        model_config({key: 1})
    assert (caught.value.field, caught.value.problem) == (key, problem)


def test_a_key_like_no_other_gets_the_list_of_keys():
    with pytest.raises(
        ConfigError, match=r"zzz: unknown key; known keys: activation, architecture, attention_scale, .*vocab_size$"
    ):
        model_config({"zzz": 1})


def test_a_special_token_template_survives_json_and_defaults_to_bos_and_eos():
    assert EncoderDecoderConfig(bos_id=5, eos_id=6).template == SpecialTokenTemplate(
        source_suffix=(6,), target_prefix=(5,)
    )
    template = SpecialTokenTemplate(
        source_prefix=(SOURCE_LANGUAGE,), target_prefix=(2, TARGET_LANGUAGE), languages=(("de", 7),)
    )
    config = EncoderDecoderConfig(special_token_template=template)
    assert model_config(json.loads(json.dumps(config.to_json()))) == config
    assert config.template.token_ids == {2, 7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_prefix": (-3,)}, "target_prefix: must be a list of token ids"),
        ({"source_suffix": (TARGET_LANGUAGE,)}, "source_suffix: names a language, and there are none"),
        ({"languages": (("de", -1),)}, "languages: must be pairs of a code and a token id"),
        ({"languages": (5,)}, "languages: must be pairs of a code and a token id, got (5,)"),
        ({"languages": 5}, "languages: must be pairs of a code and a token id, got 5"),
        ({"languages": ("de",)}, "languages: must be pairs of a code and a token id, got ('de',)"),
    ],
)
def test_an_invalid_special_token_template_is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        SpecialTokenTemplate(**changes)
    assert str(caught.value).startswith(message)


def test_reading_a_configuration_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from model.presets import PRESETS; PRESETS['demo']"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_texts_are_wrapped_with_their_language_tokens():
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
    assert template.wrap_target([4, 5], 2, into) == [2, 7, 4, 5, 2]
    first = template.replace(target_prefix=(TARGET_LANGUAGE,))
    assert first.wrap_target([4, 5], 2, into) == [7, 4, 5, 2, 7], "as mBART of 25 languages is trained"
    plain = EncoderDecoderConfig().template
    assert plain.wrap_target([4], 2) == [1, 4, 2]
    assert (plain.wrap_source([4]), plain.wrap_prompt(), plain.num_source_special) == ([4, 2], [1], 1)
