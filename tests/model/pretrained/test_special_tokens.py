import json

import pytest

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, ConfigError, LanguagePair, SpecialTokenTemplate
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.frame import with_source_frame
from model.pretrained.import_checkpoint import import_checkpoint, import_model
from model.pretrained.special_tokens import added_tokens_of, with_languages
from model.pretrained.tokenizer_files import special_texts
from tests.decoders import rewritten
from tests.model.tokenizers.spm import MODELS, processor, trained
from tests.multilingual import lines
from tests.pretrained_encoder import saved as save_encoder
from tests.pretrained_encoder import theirs_of as make_encoder
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
    single = imported_with("marian", {">>fra<<": 90}, tmp_path / "one")
    assert single.languages == (("fra", 90),)
    assert single.wrap_source([5, 6]) == single.wrap_source([5, 6], LanguagePair("", "fra")) == [90, 5, 6, 0]
    without = imported_with("marian", {"</s>": 0}, tmp_path / "none")
    assert (without.languages, without.source_prefix) == ((), ())


@pytest.mark.parametrize(
    ("kind", "names", "codes"),
    [
        (
            "mbart",
            ["de_DE", "fil_PH", "zh_Hant_TW", "sr-Latn", "eo"],
            ["de_DE", "fil_PH", "zh_Hant_TW", "sr-Latn", "eo"],
        ),
        ("m2m_100", ["__en__", "__zh_tw__", "__pt-BR__"], ["en", "zh_tw", "pt-BR"]),
        (
            "m2m_100",
            ["eng_Latn", "myv_Cyrl", "cmn_Hans_CN", "min_Arab2"],
            ["eng_Latn", "myv_Cyrl", "cmn_Hans_CN", "min_Arab2"],
        ),
        ("mbart", ["<s>", "<mask>", "de_DE", "<ent>", "madeupword0000"], ["de_DE"]),
    ],
)
def test_codes_of_other_forms_and_added_languages_are_known(tmp_path, kind, names, codes):
    template = imported_with(kind, {name: 60 + index for index, name in enumerate(names)}, tmp_path)
    assert [code for code, _ in template.languages] == codes


@pytest.mark.parametrize(
    ("files", "prefix"),
    [
        ({}, ()),
        ({"tokenizer_config.json": {"add_bos_token": False}}, ()),
        ({"tokenizer_config.json": {"add_bos_token": True}, "tokenizer.json": {"post_processor": None}}, ()),
        ({"tokenizer_config.json": {"add_eos_token": True}, "tokenizer.json": {"post_processor": None}}, ()),
        ({"tokenizer_config.json": {}, "tokenizer.json": {"post_processor": None}}, ()),
        ({"tokenizer.json": {"post_processor": {"type": "ByteLevel"}}}, ()),
        (
            {
                "tokenizer.json": {
                    "post_processor": {
                        "type": "Sequence",
                        "processors": [
                            {"type": "ByteLevel"},
                            {
                                "type": "TemplateProcessing",
                                "single": [{"SpecialToken": {"id": "<b>"}}, {"Sequence": {"id": "A"}}],
                                "special_tokens": {"<b>": {"id": "<b>", "ids": [9]}},
                            },
                        ],
                    }
                }
            },
            (9,),
        ),
    ],
)
def test_the_prompt_prefix_is_that_of_the_tokenizer(llama, tmp_path, files, prefix):
    path = rewritten(llama, tmp_path)
    for name, values in files.items():
        (path / name).write_text(json.dumps(values))
    assert import_model(path).config.template == SpecialTokenTemplate(target_prefix=prefix)


def test_a_tokenizer_that_appends_tokens_is_refused(llama, tmp_path):
    template = [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]
    processor = {"type": "TemplateProcessing", "single": template, "special_tokens": {"</s>": {"ids": [2]}}}
    path = rewritten(llama, tmp_path)
    (path / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
    with pytest.raises(PretrainedError, match=r"tokens \[2\] after a prompt are not covered: they would end it"):
        import_model(path)


def test_a_model_without_its_tokenizer_is_refused(tmp_path):
    save_encoder(make_encoder("bert", "ForMaskedLM"), tmp_path)
    (tmp_path / "vocab.txt").write_text((tmp_path / "vocab.txt").read_text().replace("[MASK]", "masked"))
    with pytest.raises(PretrainedError, match="the id of mask_token is missing"):
        import_model(tmp_path)


def test_xlm_r_has_the_special_tokens_of_fairseq(tmp_path):
    make_encoder("xlm-roberta", "ForMaskedLM", {"vocab_size": 702}).save_pretrained(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained(**MODELS["unigram"]))
    config = import_model(tmp_path).config
    assert (config.bos_id, config.eos_id, config.unk_id, config.mask_id) == (0, 2, 3, 701)
    assert (config.template.source_prefix, config.template.source_suffix) == ((0,), (2,))


BERTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def original(family, path, *, with_json):
    """A masked model with the tokenizer files of the first checkpoints, which name no special tokens."""
    import tokenizers

    if is_bert := family != "roberta":
        trained = tokenizers.BertWordPieceTokenizer()
        trained.train_from_iterator(lines(100, 12), vocab_size=500, special_tokens=list(BERTS), show_progress=False)
    else:
        trained = tokenizers.ByteLevelBPETokenizer()
        trained.train_from_iterator(lines(100, 12), vocab_size=500, special_tokens=list(FAIRSEQ), show_progress=False)
    make_encoder(family, "ForMaskedLM", {"vocab_size": trained.get_vocab_size()}).save_pretrained(path)
    trained.save_model(str(path))
    if with_json:
        trained.save(str(path / "tokenizer.json"))
    named = {"model_max_length": 512} | ({"do_lower_case": True} if is_bert else {})
    (path / "tokenizer_config.json").write_text(json.dumps(named))


@pytest.mark.parametrize("with_json", [True, False])
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_special_tokens_that_no_file_names_are_those_of_the_class(family, with_json, tmp_path):
    original(family, tmp_path, with_json=with_json)
    names = ("<s>", "</s>", "<unk>", "<mask>") if family == "roberta" else ("[CLS]", "[SEP]", "[UNK]", "[MASK]")
    config, special = import_model(tmp_path).config, convert_tokenizer(tmp_path).special
    assert [config.bos_id, config.eos_id, config.unk_id, config.mask_id] == [special[name] for name in names]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert config.template.wrap_source(theirs("a b", add_special_tokens=False).input_ids) == theirs("a b").input_ids
    assert config.mask_id == theirs.mask_token_id
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"cls_token": names[2]}))
    assert import_model(tmp_path).config.bos_id == special[names[2]], "files override the class"


def test_a_class_beside_the_family_has_its_own_special_tokens(tmp_path):
    """A BERT with the tokenizer of RoBERTa."""
    original("roberta", tmp_path, with_json=False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "bert"}))
    assert [special_texts(tmp_path)[f"{name}_token"] for name in ("cls", "sep")] == ["<s>", "</s>"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert "cls_token" not in special_texts(tmp_path)


MADLAD = {
    **{"model_type": "unigram", "vocab_size": 700, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "user_defined_symbols": "<2de>,<2zh_Latn>,<2Latn>,<2translate>",
}


def madlad(path, form):
    """A directory of T5 whose tokenizer has languages, as pieces of a SentencePiece model or of a tokenizer.json."""
    make("t5-1.1", TINY._replace(vocab_size=720, layers=(1, 1))).save_pretrained(path)
    config = path / "config.json"
    values = json.loads(config.read_text())
    (path / "spiece.model").write_bytes(trained(**MADLAD))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}))
    if form == "tokenizer.json":
        config.write_text(json.dumps({**values, "model_type": "llama"}))  # whose pieces stay what they are
        theirs = json.loads(convert_tokenizer(path).to_json())
        theirs["added_tokens"] = [item for item in theirs["added_tokens"] if not item["content"].startswith("<2")]
        (path / "tokenizer.json").write_text(json.dumps(theirs))
        (path / "spiece.model").unlink()
        config.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("form", ["spiece.model", "tokenizer.json"])
def test_a_language_of_t5_is_read_before_the_text(form, tmp_path):
    path, theirs = madlad(tmp_path, form), processor(trained(**MADLAD))
    tokenizer = convert_tokenizer(path)
    config = with_source_frame(with_languages(import_model(path), path, added_tokens_of(tokenizer)), path).config
    assert config.template.languages == (("de", 3), ("zh_Latn", 4))
    for text in lines(100, 3):
        ids = config.template.wrap_source(tokenizer.encode(text), LanguagePair("", "zh_Latn"))
        assert ids == [*theirs.encode(f"<2zh_Latn> {text}"), 1]
    assert not {3, 4} & {*tokenizer.encode("<2de> <2zh_Latn>")}, "the name of a language in a text is text"
    with pytest.raises(ConfigError, match="'xx': unknown language; known languages: de, zh_Latn"):
        config.template.wrap_source([5], LanguagePair("", "xx"))
    ours = import_checkpoint(path, tmp_path / "ours", tokenizer).config
    assert (ours.source_unit, ours.template) == ("sentence", config.template)


def test_a_tokenizer_that_cuts_a_text_after_a_language_in_another_way_is_refused(tmp_path):
    path = madlad(tmp_path, "tokenizer.json")
    values = json.loads((path / "tokenizer.json").read_text())
    flags = {"id": 3, "content": "<2de>", "single_word": False, "lstrip": False, "normalized": False, "special": True}
    values["added_tokens"].append({**flags, "rstrip": True})
    values["normalizer"] = None
    values["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(PretrainedError, match=r"the tokenizer cuts <2de> 'a b' into \[3, .*\], not into 3 and \["):
        with_languages(import_model(path), path, added_tokens_of(convert_tokenizer(path)))
