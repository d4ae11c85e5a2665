"""The tokens that tokenizers put around a text."""

import itertools
import json
from typing import Any

import pytest
import tokenizers
import transformers

from model.config import SOURCE_LANGUAGE
from model.pretrained.files import PretrainedError
from model.pretrained.frame import Frame, frame_of, with_source_frame
from model.pretrained.import_checkpoint import import_model
from model.pretrained.special_tokens import with_languages
from tests.model.tokenizers.spm import MODELS, trained
from tests.pretrained_seq2seq import TINY, make

ROBERTA: dict[str, Any] = {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}
BERT: dict[str, Any] = {"type": "BertProcessing", "cls": ["[CLS]", 11], "sep": ["[SEP]", 12]}
LANGUAGES = {"de_DE": 90, "en_XX": 91}
NOTHING: dict[str, int] = {}
NAMES = {0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>", 11: "[CLS]", 12: "[SEP]", 90: "de_DE", 91: "en_XX"}


def template(*single):
    """The post-processor that adds these ids, where None is the text."""
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if token is None
        else {"SpecialToken": {"id": NAMES[token], "type_id": 0}}
        for token in single
    ]
    special = {
        NAMES[token]: {"id": NAMES[token], "ids": [token], "tokens": [NAMES[token]]}
        for token in single
        if token is not None
    }
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}


def sequence(*steps):
    return {"type": "Sequence", "processors": [*steps]}


BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def tokenizer_files(path, named, processor, **config):
    """A directory with a byte-level tokenizer.json that has this post-processor, and a tokenizer_config.json."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {NAMES.get(token, alphabet[token]): token for token in range(100)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([*NAMES.values()])
    values = {**json.loads(backend.to_str()), "post_processor": processor}
    (path / "tokenizer.json").write_text(json.dumps(values))
    (path / "tokenizer_config.json").write_text(json.dumps(({"tokenizer_class": named} if named else {}) | config))
    return path


NAMED = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "<unk>"}
GENERIC = "PreTrainedTokenizerFast"
CLASSES: tuple[str | None, ...] = (
    *(None, GENERIC, "TokenizersBackend", "GPT2Tokenizer", "LlamaTokenizerFast", "BertTokenizer", "BartTokenizer"),
    *("RobertaTokenizerFast", "NoSuchTokenizer"),
)
PROCESSORS: tuple[dict[str, Any] | None, ...] = (
    *(None, BYTES, ROBERTA, BERT, template(0, None), template(None, 2), template(11, None, 12), template(0, 0, None)),
    *(sequence(BYTES), sequence(BYTES, template(0, None)), sequence(ROBERTA, template(2, None, 0))),
)
KINDS = ("llama", "gpt2", "qwen2", "phi3", "bart", "bert", "roberta")
CASES = list(itertools.product(KINDS, CLASSES, range(len(PROCESSORS))))


def check_frame(kind, named, index, path):
    """Against transformers, whatever add_bos_token and add_eos_token say beside the post-processor."""
    (path / "config.json").write_text(json.dumps({"model_type": kind}))
    says = {"add_bos_token": index % 2 == 0, "add_eos_token": index % 3 == 0}
    tokenizer_files(path, named, PROCESSORS[index], **NAMED, **says)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    text = theirs("a", add_special_tokens=False)["input_ids"]
    before, after = frame_of(path)
    assert [*before, *text, *after] == theirs("a")["input_ids"], (kind, named, PROCESSORS[index])


@pytest.mark.parametrize("first", range(4))
def test_the_frame_is_that_of_transformers(first, tmp_path):
    """Of some classes with some post-processors each; the slow test has all."""
    for case in CASES[first * 9 :: 37]:
        check_frame(*case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_is_that_of_transformers(kind, tmp_path):
    for case in CASES:
        if case[0] == kind:
            check_frame(*case, tmp_path)


@pytest.mark.parametrize(
    ("config", "frame"),
    [
        ({}, Frame()),
        ({"add_bos_token": False}, Frame()),
        ({"add_bos_token": True}, Frame(before=(1,))),
        ({"add_bos_token": True, "add_eos_token": True}, Frame(before=(1,), after=(2,))),
        ({"add_bos_token": True, "bos_token": "</s>"}, Frame(before=(2,))),
        ({"add_bos_token": True, "bos_token": {"content": "</s>"}}, Frame(before=(2,))),
    ],
)
def test_without_a_tokenizer_json_its_configuration_decides(config, frame, tmp_path):
    """As LlamaTokenizer of transformers 5.23 does with the same files."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.model").write_bytes(trained(**MODELS["bpe"]))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", **names, **config})
    )
    assert frame_of(tmp_path) == frame


def sources(path, variant, named, processor=None, special=NOTHING, **changes):
    """The template of a model whose tokenizer.json has a post-processor."""
    make(variant, TINY._replace(layers=(1, 1)), **changes).save_pretrained(path)
    tokenizer_files(path, named, processor, **NAMED)
    return with_source_frame(with_languages(import_model(path), path, special), path).config.template


@pytest.mark.parametrize(
    ("variant", "named", "processor", "before", "after"),
    [
        ("bart", GENERIC, None, (), ()),
        ("bart", GENERIC, BYTES, (), ()),
        ("bart", GENERIC, template(None, 2), (), (2,)),
        ("bart", GENERIC, sequence(BYTES, template(0, None)), (0,), ()),
        ("bart", "BertTokenizer", None, (11,), (12,)),
        ("bart", "BartTokenizerFast", None, (11,), (12,)),
        ("t5", "RobertaTokenizer", ROBERTA, (11,), (12,)),
        ("t5", GENERIC, ROBERTA, (0,), (2,)),
        ("t5", None, template(0, None), (), (2,)),
        ("mt5", "MT5TokenizerFast", template(None, 2), (), (2,)),
        ("marian", GENERIC, template(None, 2), (), (2,)),
        ("marian", "MarianTokenizer", template(0, None, 2), (), (0,)),
        ("m2m_100", "NllbTokenizerFast", template(0, None, 2), (), (2,)),
    ],
)
def test_the_frame_of_a_source_is_that_of_the_tokenizer(variant, named, processor, before, after, tmp_path):
    found = sources(tmp_path, variant, named, processor)
    assert (found.source_prefix, found.source_suffix) == (before, after)


@pytest.mark.parametrize(
    ("named", "processor", "problem"),
    [
        ("MBartTokenizer", template(0, None), ""),
        (GENERIC, template(None, 2, 91), ""),
        (
            GENERIC,
            template(90, None, 2),
            "puts its language before a source and token 2 after it; covered with",
        ),
        (GENERIC, None, "puts nothing before a source and nothing after it"),
    ],
)
def test_the_frame_of_a_source_with_languages_is_that_of_the_family(named, processor, problem, tmp_path):
    if not problem:
        found = sources(tmp_path, "mbart", named, processor, LANGUAGES)
        assert (found.source_prefix, found.source_suffix) == ((), (2, SOURCE_LANGUAGE))
    else:
        with pytest.raises(PretrainedError, match=problem):
            sources(tmp_path, "mbart", named, processor, LANGUAGES)


def test_a_class_that_no_file_explains_is_refused(tmp_path):
    make("m2m_100", TINY._replace(layers=(1, 1))).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "SMALL100Tokenizer"}')
    with pytest.raises(PretrainedError, match="tokenizer_class SMALL100Tokenizer is not covered for m2m_100: no file"):
        with_source_frame(import_model(tmp_path), tmp_path)


def test_the_start_of_a_target_is_that_of_generate(tmp_path):
    """generation_config.json decides, its bos token where it names no start."""
    make("bart", TINY._replace(layers=(1, 1)), decoder_start_token_id=7).save_pretrained(tmp_path)
    for generation, start in (
        ({"decoder_start_token_id": 9, "eos_token_id": 2}, (9,)),
        ({"bos_token_id": 5, "eos_token_id": 2}, (5,)),
        ({"decoder_start_token_id": 9, "forced_bos_token_id": 4, "eos_token_id": 2}, (9, 4)),
        (None, (7,)),
    ):
        (tmp_path / "generation_config.json").unlink()
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        else:
            (tmp_path / "config.json").write_text(
                json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"decoder_start_token_id": 7})
            )
        assert import_model(tmp_path).config.template.target_prefix == start
