import json

import pytest

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, LanguagePair
from model.pretrained.import_model import import_model
from model.pretrained.languages import with_languages
from tests.pretrained_seq2seq import TINY, make, transformers


def imported_with(kind, special, directory, **tokenizer):
    """The special_token_template of a model whose tokenizer has these special tokens."""
    model = make(kind, TINY._replace(vocab_size=max(special.values()) + 2))
    model.save_pretrained(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return with_languages(import_model(directory), directory, special).config.template


@pytest.mark.parametrize(
    ("kind", "tokenizer", "source", "target", "legacy"),
    [
        ("mbart", "MBartTokenizer", "en_XX", "ro_RO", False),
        ("mbart", "MBart50Tokenizer", "fr_XX", "sw_KE", False),
        ("m2m_100", "NllbTokenizer", "eng_Latn", "zho_Hans", False),
        ("m2m_100", "NllbTokenizer", "fra_Latn", "deu_Latn", True),
    ],
)
def test_language_tokens_are_placed_as_by_the_tokenizer(tmp_path, kind, tokenizer, source, target, legacy):
    more = {"legacy_behaviour": True} if legacy else {}
    theirs = getattr(transformers, tokenizer)(src_lang=source, tgt_lang=target, **more)
    special = {name: token for name, token in theirs.get_vocab().items() if token >= 4}
    template = imported_with(kind, special, tmp_path, tokenizer_class=tokenizer, **more)
    languages = LanguagePair(source, target)
    text = theirs("", add_special_tokens=False).input_ids
    assert template.wrap_source(text, languages) == theirs("").input_ids
    forced = theirs._build_translation_inputs("", None, source, target)["forced_bos_token_id"]
    assert template.wrap_prompt((), languages)[-1] == forced
    assert len(template.target_prefix) == (1 if tokenizer == "MBartTokenizer" else 2)
    assert dict(template.languages)[source] == special[source]


def test_m2m_languages_are_named_by_their_codes(tmp_path):
    template = imported_with("m2m_100", {"__en__": 90, "__sw__": 91, "<mask>": 92}, tmp_path)
    assert template.languages == (("en", 90), ("sw", 91))
    assert (template.source_prefix, template.target_prefix) == ((SOURCE_LANGUAGE,), (2, TARGET_LANGUAGE))


def test_multilingual_marian_reads_the_target_language_before_the_text(tmp_path):
    template = imported_with("marian", {">>fra<<": 90, ">>pt_br<<": 91}, tmp_path / "several")
    assert template.languages == (("fra", 90), ("pt_br", 91))
    assert template.wrap_source([5, 6], LanguagePair("", "pt_br")) == [91, 5, 6, 0]
    assert template.wrap_prompt() == [92]
    alone = imported_with("marian", {">>fra<<": 90}, tmp_path / "one")
    assert (alone.languages, alone.source_prefix) == ((), ())
