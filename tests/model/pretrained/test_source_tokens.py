"""Encoder-decoders whose tokenizer frames sources unlike their family."""

import json

import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_checkpoint, import_model
from model.pretrained.source_tokens import check_source_tokens
from model.pretrained.special_tokens import with_languages
from tests.pretrained_seq2seq import TINY, make
from tests.tiny import tiny_tokenizer

PAIR = {"<s>": 0, "</s>": 2, "[CLS]": 11, "[SEP]": 12}
ROBERTA = {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}
LANGUAGES = {"de_DE": 90, "en_XX": 91}


def template(*single):
    """The post-processor that adds these ids, where None is the text."""
    pieces = [{"Sequence": {"id": "A"}} if token is None else {"SpecialToken": {"id": str(token)}} for token in single]
    special = {str(token): {"id": str(token), "ids": [token]} for token in single if token is not None}
    return {"type": "TemplateProcessing", "single": pieces, "special_tokens": special}


def check(path, variant, named, processor=None, special=PAIR, **changes):
    """Imports a model whose tokenizer has a class and, unless that is None, a tokenizer.json with a post-processor."""
    make(variant, TINY, **changes).save_pretrained(path)
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    if processor is not None:
        (path / "tokenizer.json").write_text(json.dumps({"post_processor": processor or None}))
    check_source_tokens(with_languages(import_model(path), path, special).config, path, special)


@pytest.mark.parametrize(
    ("variant", "named", "processor", "message"),
    [
        ("t5", "RobertaTokenizer", None, r"\(RobertaTokenizer\) puts token 0 before a source and token 2 after it"),
        ("t5", "RobertaTokenizerFast", ROBERTA, "covered for t5: nothing before, token 1 after"),
        ("t5", "BertTokenizer", None, "puts token 11 before a source and token 12 after it"),
        ("t5", "GPT2Tokenizer", None, "tokenizer_class GPT2Tokenizer is not covered for t5: no file names the tokens"),
        ("t5", "GPT2Tokenizer", {"type": "ByteLevel"}, "tokenizer_class GPT2Tokenizer is not covered for t5"),
        ("t5", "PreTrainedTokenizerFast", ROBERTA, "puts token 0 before a source and token 2 after it"),
        ("t5", "T5TokenizerFast", template(0, None, 1), "puts token 0 before a source and token 1 after it"),
        ("t5", None, template(None, 2), r"\(tokenizer\.json\) puts nothing before a source and token 2 after it"),
        ("bart", "BertTokenizer", None, "covered for bart: token 0 before, token 2 after"),
        ("bart", "PreTrainedTokenizerFast", template(None, 2), "puts nothing before a source and token 2 after it"),
        ("marian", "T5TokenizerFast", template(None, 1), "puts nothing before a source and token 1 after it"),
        ("mbart", "BarthezTokenizer", None, "puts token 0 before a source and token 2 after it"),
        ("mbart", "PreTrainedTokenizerFast", template(90, None, 2), "puts its language before a source and token 2"),
        ("m2m_100", "SMALL100Tokenizer", None, "tokenizer_class SMALL100Tokenizer is not covered for m2m_100"),
        (
            "bart",
            "PreTrainedTokenizerFast",
            {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template(0, None)]},
            "puts token 0 before a source and nothing after it",
        ),
    ],
)
def test_other_tokens_around_a_source_are_refused(variant, named, processor, message, tmp_path):
    with pytest.raises(PretrainedError, match=message):
        check(tmp_path, variant, named, processor, special={**PAIR, **LANGUAGES})


@pytest.mark.parametrize(
    ("variant", "named", "processor"),
    [
        ("t5", None, None),
        ("t5", None, {}),
        ("t5", "T5Tokenizer", None),
        ("t5", "T5TokenizerFast", template(None, 1)),
        ("t5", "T5TokenizerFast", {}),
        ("t5", "PreTrainedTokenizerFast", template(None, 1)),
        ("t5", "PreTrainedTokenizerFast", {}),
        ("mt5", "MT5Tokenizer", None),
        ("bart", "BartTokenizer", None),
        ("bart", "BartTokenizerFast", ROBERTA),
        ("bart", "RobertaTokenizer", None),
        ("bart", "PreTrainedTokenizerFast", {"type": "Sequence", "processors": [{"type": "ByteLevel"}, ROBERTA]}),
        ("marian", "MarianTokenizer", None),
        ("marian", "MarianTokenizer", template(None, 5)),
        ("mbart", "MBartTokenizerFast", template(None, 2, 91)),
        ("mbart", "PreTrainedTokenizerFast", template(None, 2, 91)),
        ("mbart", "MBart50Tokenizer", template(None, 2)),
        ("m2m_100", "M2M100Tokenizer", None),
        ("m2m_100", "NllbTokenizerFast", template(None, 2, 91)),  # the class puts the language first
    ],
)
def test_the_family_s_tokens_around_a_source_are_accepted(variant, named, processor, tmp_path):
    check(tmp_path, variant, named, processor, special={**PAIR, **(LANGUAGES if variant == "mbart" else {})})


def test_bart_with_the_tokens_of_bert_is_accepted(tmp_path):
    """As fnlp/bart-base-chinese, whose bos and eos are [CLS] and [SEP]."""
    check(tmp_path, "bart", "BertTokenizer", bos_token_id=11, eos_token_id=12, decoder_start_token_id=12)


def test_an_import_refuses_them_and_writes_nothing(tmp_path):
    tokenizer = tiny_tokenizer()
    make("t5", TINY._replace(vocab_size=tokenizer.vocab_size)).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    (tmp_path / "theirs" / "tokenizer.json").write_text(json.dumps({"post_processor": ROBERTA}))
    with pytest.raises(PretrainedError, match=r"\(RobertaTokenizer\) puts token 0 before a source"):
        import_checkpoint(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    assert not (tmp_path / "ours").exists()
