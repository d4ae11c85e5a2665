"""Manifest entries of a model's configuration."""

import pytest

from export.bundle.manifest import AlignmentSpec, Context, Tokens
from export.manifest_entries import alignment_of, entries_of
from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, LanguagePair, SpecialTokenTemplate
from tests.tiny import tiny_config, tiny_encoder


@pytest.mark.parametrize(("layers", "expected"), [(1, 1), (2, 2), (3, 2), (6, 5)])
def test_words_are_aligned_by_the_last_layer_but_one(layers, expected):
    config = tiny_config(num_decoder_layers=layers)
    assert alignment_of(config) == AlignmentSpec(layers=layers, heads=4, default_layer=expected)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [("encoder_decoder", "translation"), ("recurrent", "translation"), ("decoder", "generation")],
)
def test_entries_follow_the_architecture(architecture, task):
    config = tiny_config(architecture)
    entries = entries_of(config, attention=False)
    assert (entries["architecture"], entries["task"], entries["alignment"]) == (architecture, task, None)
    assert (entries["encoding"] is None) == (task == "generation")
    assert entries["attention_maps"] == ()
    assert entries["tokens"] == Tokens(pad=config.pad_id, bos=config.bos_id, eos=config.eos_id, unk=config.unk_id)


def test_an_encoder_has_neither_alignment_nor_decoder_positions():
    entries = entries_of(tiny_encoder("classify").config, attention=True)
    assert (entries["task"], entries["alignment"]) == ("encoding", None)
    assert entries["limits"].max_target_len == 0
    assert entries["encoding"].labels
    assert [maps.kind for maps in entries["attention_maps"]] == ["encoder"]


def test_a_context_has_its_separator():
    config = tiny_config(context_sentences=3, separator_id=4)
    assert entries_of(config, attention=False)["context"] == Context(sentences=3, separator=4)
    assert entries_of(tiny_config(separator_id=4), attention=False)["context"] is None
    assert entries_of(tiny_config("decoder"), attention=False)["context"] is None


def test_languages_have_names_in_the_template():
    template = SpecialTokenTemplate(
        source_prefix=(SOURCE_LANGUAGE,),
        source_suffix=(2,),
        target_prefix=(2, TARGET_LANGUAGE),
        languages=(("de", 5), ("en", 6)),
    )
    entry = entries_of(tiny_config(special_token_template=template), attention=False)["template"]
    assert (entry.source_prefix, entry.target_prefix) == (("source_language",), (2, "target_language"))
    assert entry.languages == {"de": 5, "en": 6}


def test_what_a_model_reads_at_a_time_is_that_of_its_configuration_unless_it_is_given():
    config = tiny_config(source_unit="sentence")
    assert entries_of(config, attention=False)["source_unit"] == "sentence"
    assert entries_of(config, attention=False, source_unit="text")["source_unit"] == "text"
    assert entries_of(tiny_config("decoder"), attention=False)["source_unit"] == "text"


def test_languages_are_those_that_requests_need_not_name():
    def named(config, *given):
        entries = entries_of(config, attention=False, languages=LanguagePair(*given))
        return entries["source_language"], entries["target_language"]

    own = tiny_config(source_language="en", target_language="de")
    assert named(tiny_config()) == ("", "")
    assert named(own) == ("en", "de")
    assert named(own, "", "fr") == ("en", "fr")
    template = SpecialTokenTemplate(source_prefix=(TARGET_LANGUAGE,), target_prefix=(1,), languages=(("de", 4),))
    assert named(own.replace(special_token_template=template), "", "fr") == ("en", "")
