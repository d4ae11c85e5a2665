"""Every field of the files of a checkpoint is read, refused, an option of requests, or known to have no effect."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from model.pretrained.field_rules import (
    NO_EFFECT,
    OPTIONS,
    REFUSED_SETTINGS,
    TOKENIZER_NO_EFFECT,
    TOKENIZER_READ,
    check_tokenizer_fields,
)
from model.pretrained.files import Fields, PretrainedError, load_weights
from model.pretrained.import_checkpoint import FAMILIES, family_of, import_checkpoint, import_model
from tests.decoders import FAMILIES as DECODERS
from tests.decoders import make_decoder, rewritten
from tests.pretrained_encoder import FAMILIES as ENCODERS
from tests.pretrained_encoder import theirs_of
from tests.pretrained_seq2seq import MODELS, TINY, make
from tests.tiny import tiny_tokenizer

CLASSES: tuple[str, ...] = (
    "Bert",
    "DistilBert",
    "Roberta",
    "XLMRoberta",
    "GPT2",
    "Llama",
    "Gemma",
    "Qwen2",
    "T5",
    "MBart",
    "MBart50",
)
CLASSES += ("Nllb", "M2M100", "Marian")
PAGE = Path(__file__).parents[3] / "docs" / "import.md"


class Recorded(dict[str, Any]):
    """A dictionary that remembers which names were asked for."""

    def __init__(self, values):
        super().__init__(values)
        self.asked = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __contains__(self, name):
        self.asked.add(name)
        return super().__contains__(name)


def make_any(family):
    if family == "gemma3":  # its own fields are those of pictures
        return make_decoder("gemma3_text")
    if family in DECODERS:
        return make_decoder(family)
    return make(family, TINY._replace(layers=(1, 1))) if family in MODELS else theirs_of(family, "ForMaskedLM")


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"marian_nmt"}))  # of transformers
def test_every_field_of_a_family_is_decided(family, tmp_path):
    theirs = make_any(family)
    theirs.save_pretrained(tmp_path)
    config = Recorded(json.loads(theirs.config.to_json_string(use_diff=False)))
    generation = Recorded(transformers.GenerationConfig().to_dict() | {"eos_token_id": 2, "pad_token_id": 1})
    fields = Fields(config)
    family_of(fields)(fields, Fields(generation), load_weights(tmp_path))
    known = {*NO_EFFECT, *OPTIONS, *REFUSED_SETTINGS}
    assert set(config) - config.asked - known == set()
    if family not in ENCODERS:
        assert set(generation) - generation.asked - known == set()


def test_every_field_of_a_tokenizer_is_decided():
    known = TOKENIZER_READ | TOKENIZER_NO_EFFECT
    for name in CLASSES:
        parameters = inspect.signature(getattr(transformers, f"{name}Tokenizer").__init__).parameters
        fields = {field for field in parameters if not field.startswith("_") and not field.endswith("_token")}
        files = {
            "self",
            "args",
            "kwargs",
            "vocab",
            "merges",
            "vocab_file",
            "merges_file",
            "spm_file",
            "target_vocab_file",
        }
        assert fields - known - files - {"source_spm", "target_spm"} == set(), name


def test_the_page_lists_the_settings_of_requests_and_those_that_are_refused():
    words = set(re.findall(r"\w+", PAGE.read_text(encoding="utf-8")))
    assert {*OPTIONS, *REFUSED_SETTINGS} - words == set()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    make_decoder("llama", vocab_size=tiny_tokenizer().vocab_size).save_pretrained(path)
    return path


def test_unknown_fields_and_options_of_requests_are_told(llama, tmp_path):
    path = rewritten(llama, tmp_path, logit_scale=0.5, attention_bias=False)
    settings = {"eos_token_id": 2, "num_beams": 4, "top_p": 1.0, "length_penalty": 0.6, "new_setting": 3}
    (path / "generation_config.json").write_text(json.dumps(settings))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x", "reverses_words": True}))
    found = import_checkpoint(path, tmp_path / "ours", tiny_tokenizer())
    assert found.unknown == (
        "config.json: logit_scale",
        "generation_config.json: new_setting",
        "tokenizer_config.json: reverses_words",
    )
    assert found.options == {"num_beams": 4, "length_penalty": 0.6}
    assert import_model(llama).unknown == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence_bias", [[[5], 1.0]]),
        ("guidance_scale", 1.5),
        ("encoder_repetition_penalty", 1.2),
        ("exponential_decay_length_penalty", [5, 1.1]),
    ],
)
def test_settings_that_no_request_has_are_refused(llama, tmp_path, name, value):
    path = rewritten(llama, tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, name: value}))
    with pytest.raises(PretrainedError, match=rf"generation_config\.json: {name} .* is not covered; no request can"):
        import_model(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, name: None}))
    import_model(path)


BERT = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False}


@pytest.mark.parametrize(
    ("normalizer", "cut", "config", "problem"),
    [
        (BERT, None, {"do_lower_case": False}, "do_lower_case False contradicts tokenizer.json, which has True"),
        (BERT, None, {"strip_accents": True}, "strip_accents True contradicts"),
        (BERT, None, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars False contradicts"),
        (None, BYTES, {"add_prefix_space": True}, "add_prefix_space True contradicts"),
        (
            None,
            {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTES]},
            {"add_prefix_space": True},
            "add_prefix_space True contradicts",
        ),
        (
            None,
            None,
            {"added_tokens_decoder": {"9": {"content": "word", "special": False}}},
            "added_tokens_decoder: 'word' is not in tokenizer.json",
        ),
        (BERT, BYTES, {"do_lower_case": True, "add_prefix_space": False}, ""),
        (BERT, BYTES, {"added_tokens_decoder": {"0": {"content": "a", "special": False}}}, ""),
    ],
)
def test_files_of_a_tokenizer_that_contradict_each_other_are_refused(normalizer, cut, config, problem, tmp_path):
    values = {"normalizer": normalizer, "pre_tokenizer": cut, "model": {"vocab": {"a": 0}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if not problem:
        return check_tokenizer_fields(tmp_path)
    with pytest.raises(PretrainedError, match=re.escape(problem)):
        check_tokenizer_fields(tmp_path)
