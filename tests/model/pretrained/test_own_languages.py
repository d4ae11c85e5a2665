import json
from pathlib import Path

import pytest

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, SpecialTokenTemplate
from model.pretrained.own_languages import with_own_languages
from tests.tiny import tiny_config

STUDENT = ("ende.student.tiny11/model.intgemm.alphas.bin", "vocab.deen.spm", "lex.s2t.bin")
FIREFOX = ("models/model.ende.intgemm.alphas.bin", "vocab.ende.spm", "lex.50.50.ende.s2t.bin")
NAMELESS = ("models/model.base.bin", "vocab.spm", "lex.tiny.bin")


@pytest.mark.parametrize(
    ("tokenizer", "name", "files", "found"),
    [
        ({"source_lang": "de", "target_lang": "en"}, "copy", (), ("de", "en")),
        ({"source_lang": "en", "target_lang": "ROMANCE"}, "opus-mt-en-ROMANCE", (), ("en", "")),
        ({"tokenizer_class": "M2M100Tokenizer", "source_lang": "de", "target_lang": "en"}, "m", (), ("", "")),
        ({}, "Helsinki-NLP/opus-mt-en-de", (), ("en", "de")),
        ({}, "opus-mt-tc-big-en-fr", (), ("en", "fr")),
        ({}, "opus-mt-mul-en", (), ("", "")),
        ({}, "opus-mt-en-ROMANCE", (), ("", "")),
        ({}, "my-en-de", (), ("", "")),
        ({}, "model.bin", STUDENT, ("en", "de")),
        ({}, "model.bin", FIREFOX, ("en", "de")),
        ({}, "model.bin", NAMELESS, ("", "")),
    ],
)
def test_languages_are_those_that_the_makers_wrote(tmp_path, tokenizer, name, files, found):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = with_own_languages(tiny_config(), tmp_path, name, [Path(file) for file in files])
    assert (config.source_language, config.target_language) == found


def test_languages_that_requests_name_are_none_of_its_own(tmp_path):
    template = SpecialTokenTemplate(source_prefix=(TARGET_LANGUAGE,), target_prefix=(1,), languages=(("de", 4),))
    config = with_own_languages(tiny_config(special_token_template=template), tmp_path, "opus-mt-en-de")
    assert (config.source_language, config.target_language) == ("en", "")
    assert SOURCE_LANGUAGE not in template.source_prefix


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_models_that_translate_nothing_have_none(tmp_path, architecture):
    config = tiny_config(architecture)
    assert with_own_languages(config, tmp_path, "opus-mt-en-de") == config
