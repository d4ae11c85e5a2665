"""Converted tokenizers against SentencePiece and `transformers`: identical ids and text."""

import json
import re

import pytest

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.tokenizer import Tokenizer, TokenizerError
from tests.model.tokenizers.spm import MODELS, pieces, processor, trained
from tests.multilingual import lines

FEW, MANY = 300, 10_000


@pytest.fixture(scope="module", params=MODELS)
def converted(request, tmp_path_factory):
    """SentencePiece's own, and ours, read back from the file it is saved in."""
    model = trained(**MODELS[request.param])
    path = tmp_path_factory.mktemp(request.param)
    (path / "tokenizer.model").write_bytes(model)
    convert_tokenizer(path).save(path / "tokenizer.json")
    return processor(model), Tokenizer.load(path / "tokenizer.json")


def check_the_same(own, tokenizer, texts):
    ids = own.encode(texts)
    assert tokenizer.encode_batch(texts) == ids
    assert [tokenizer.encode(text) for text in texts[:50]] == ids[:50]
    for text, row in zip(texts, ids, strict=True):
        if own.unk_id() in row:
            continue
        text_of_ids, expected = tokenizer.decode(row), own.decode(row)
        if text.lstrip().startswith("▁"):  # blanks in disguise, of which SentencePiece drops all and we the first
            text_of_ids, expected = text_of_ids.lstrip(), expected.lstrip()
        assert text_of_ids == expected


def test_ids_and_text_are_those_of_sentencepiece(converted):
    own, tokenizer = converted
    check_the_same(own, tokenizer, lines(FEW, 2))


@pytest.mark.slow
def test_ids_and_text_are_those_of_sentencepiece_on_many_lines(converted):
    own, tokenizer = converted
    check_the_same(own, tokenizer, lines(MANY, 3))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "   a",
        "a   ",
        "a \t b\u3000c\u00a0d",
        "e\u0302\u0301 e\u0323\u0302 ế",  # several marks on one letter
        "\u1112\u1161\u11ab\u1100\u1173\u11af",  # a syllable in parts
        "ＡＢＣ１２３ ｶﾞ ﬃ ㍿",
        "▁ ▁▁ a▁b",
        "\u0000\u0001a\u200bb\ufeff",
        "[sep]a[sep] [sep]  ＡＢ",
        "<unk><s></s> <0x41>",
        "a" * 100,
        "-" * 37 + "=" * 11,
    ],
)
def test_difficult_unicode_gives_the_ids_of_sentencepiece(converted, text):
    own, tokenizer = converted
    assert tokenizer.encode(text) == own.encode(text)


def test_no_text_becomes_a_special_token(converted):
    _, tokenizer = converted
    for name, token in tokenizer.special.items():
        if name != "<unk>":
            assert token not in tokenizer.encode(f"{name} a {name}b")


def test_offsets_are_ordered_and_within_the_text(converted):
    _, tokenizer = converted
    for text in lines(100, 4):
        spans, ids = tokenizer.offsets(text), tokenizer.encode(text)
        assert len(spans) == len(ids)
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        assert starts == sorted(starts)
        assert ends == sorted(ends)
        assert all(0 <= start <= end <= len(text) for start, end in spans)


def test_offsets_refer_to_the_text_before_normalization(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained(**MODELS["unigram"]))
    tokenizer = convert_tokenizer(tmp_path)
    text = "  ＡＢＣ\u3000 привет e\u0302\u0301"
    parts = [
        (tokenizer.decode([token]), text[start:end])
        for token, (start, end) in zip(tokenizer.encode(text), tokenizer.offsets(text), strict=True)
    ]
    assert "".join(part for _, part in parts).replace(" ", "").replace("\u3000", "") == "ＡＢＣприветe\u0302\u0301"
    assert parts[-1][1].strip() == "e\u0302\u0301"


def test_tokenizers_reads_the_converted_file_alike_without_combining_marks(converted):
    """`tokenizers` reads what is written for it and does not know what is written for us."""
    from tokenizers import Tokenizer as Library

    own, tokenizer = converted
    library = Library.from_str(tokenizer.to_json())
    texts = [
        text
        for text in lines(FEW, 5)
        if not re.search("[\u0300-\u036f\u0591-\u05c7\u094d\u200b-\u200f\u1100-\u11ff<]", text)
    ]
    same = sum(library.encode(text).ids == own.encode(text) for text in texts)
    assert same >= 0.9 * len(texts)


# ---- families


def test_t5_has_its_extra_ids_at_the_end(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained(**MODELS["unigram"]))
    tokenizer = convert_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 800
    assert (tokenizer.special["<extra_id_0>"], tokenizer.special["<extra_id_99>"]) == (799, 700)
    assert tokenizer.decode([799]) == ""
    assert not {*tokenizer.special.values()} & {*tokenizer.encode("<extra_id_0> </s>")} - {tokenizer.special["<unk>"]}
    (tmp_path / "tokenizer_config.json").write_text('{"extra_ids": 10}')
    assert convert_tokenizer(tmp_path).special["<extra_id_0>"] == 709


@pytest.mark.parametrize(
    ("config", "languages"),
    [
        ({"tokenizer_class": "XLMRobertaTokenizer"}, []),
        ({"tokenizer_class": "MBartTokenizer"}, ["ar_AR", "zh_CN"]),
        ({"tokenizer_class": "MBart50Tokenizer"}, ["ar_AR", "zh_CN", "af_ZA", "sl_SI"]),
        (
            {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": ["ace_Arab", "zul_Latn"]},
            ["ace_Arab", "zul_Latn"],
        ),
    ],
)
def test_fairseq_pieces_follow_its_special_tokens(config, languages, tmp_path):
    model = trained(**MODELS["unigram"])
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, own = convert_tokenizer(tmp_path), processor(model)
    texts = lines(100, 6)
    assert tokenizer.encode_batch(texts) == [[token + 1 if token else 3 for token in row] for row in own.encode(texts)]
    assert [tokenizer.special[name] for name in ("<s>", "<pad>", "</s>", "<unk>")] == [0, 1, 2, 3]
    following = {name: token for name, token in tokenizer.special.items() if token > len(own)}
    assert list(following)[-1] == "<mask>"
    assert set(languages) <= set(following)
    if languages:
        assert following[languages[0]] == len(own) + 1
    assert tokenizer.vocab_size == len(own) + 2 + {"ar_AR": 25, "ace_Arab": 2}.get((languages or [""])[0], 0) + (
        27 if "sl_SI" in languages else 0
    )


def listed(*models):
    """A vocab.json of the pieces of models, without some of them, and with others."""
    names = dict.fromkeys(["</s>", "<unk>", ">>deu<<", *(piece for model in models for piece in pieces(model)[3:-20])])
    return {name: token for token, name in enumerate([*names, "ＸＹ", "㍻", "<pad>"])}


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("marian")
    models = trained(1, **MODELS["unigram"]), trained(2, **MODELS["unigram"])
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (path / name).write_bytes(model)
    (path / "vocab.json").write_text(json.dumps(listed(*models)))
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.MarianTokenizer(
            source_spm=str(path / "source.spm"), target_spm=str(path / "target.spm"), vocab=str(path / "vocab.json")
        )
    convert_tokenizer(path).save(path / "ours.json")
    return theirs, Tokenizer.load(path / "ours.json")


def plain(texts):
    """Those without the names of special tokens, which transformers takes for the tokens."""
    return [text for text in texts if not re.search("</?s>|<unk>|<pad>|>>", text)]


def test_marian_tokenizes_sources_and_targets_with_separate_models(marian):
    theirs, ours = marian
    texts = plain([*lines(FEW, 7), "ＸＹ ㍻ ㍻㍻"])
    sources = theirs(texts, add_special_tokens=False).input_ids
    assert ours.encode_batch(texts) == sources
    targets = theirs(text_target=texts, add_special_tokens=False).input_ids
    assert ours.target.encode_batch(texts) == targets
    assert sources != targets
    assert ours.target.vocab_size == ours.vocab_size == len(theirs)
    for row in targets:
        expected = theirs.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(row).strip() == expected
    assert not {*ours.special.values()} & {*ours.encode("</s> >>deu<< <pad>")} - {1}


def with_two_vocabularies(path):
    """The files of a tokenizer whose targets have ids of their own, in another order."""
    models = trained(1, **MODELS["unigram"]), trained(2, **MODELS["unigram"])
    target = {name: token for token, name in enumerate(reversed(listed(models[1])))}
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (path / name).write_bytes(model)
    for name, ids in (("vocab.json", listed(models[0])), ("target_vocab.json", target)):
        (path / name).write_text(json.dumps(ids))
    (path / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    return path


def test_marian_tokenizes_sources_and_targets_with_separate_vocabularies(tmp_path):
    transformers = pytest.importorskip("transformers")
    path = with_two_vocabularies(tmp_path)
    files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    files = {name: str(path / file) for name, file in {**files, "target_vocab_file": "target_vocab.json"}.items()}
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.MarianTokenizer(**files, separate_vocabs=True)
    convert_tokenizer(path).save(path / "ours.json")
    ours = Tokenizer.load(path / "ours.json")
    texts = plain(lines(FEW, 7))
    assert ours.encode_batch(texts) == theirs(texts, add_special_tokens=False).input_ids
    theirs._switch_to_target_mode()
    targets = [theirs.convert_tokens_to_ids(theirs.spm_target.encode(text, out_type=str)) for text in texts]
    assert ours.target.encode_batch(texts) == targets
    assert (len(ours.pieces), len(ours.target.pieces)) == (len(theirs.encoder), len(theirs.target_encoder))
    assert ours.special["</s>"] == 0
    assert ours.target.special["</s>"] == len(theirs.target_encoder) - 1
    for text, row in zip(texts, targets, strict=True):
        if theirs.target_encoder["<unk>"] not in row:
            assert ours.target.decode(row) == theirs.spm_target.decode(theirs.spm_target.encode(text))


def test_a_separate_vocabulary_of_marian_that_is_missing_is_named(tmp_path):
    path = with_two_vocabularies(tmp_path)
    for content, problem in (("{}", "must give each piece an id: .* has separate_vocabs true"), ('{"a": 0}', "<unk>")):
        (path / "target_vocab.json").write_text(content)
        with pytest.raises(PretrainedError, match=rf"target_vocab\.json.*{problem}|{problem}.*target_vocab\.json"):
            convert_tokenizer(path)
    (path / "target_vocab.json").unlink()
    with pytest.raises(PretrainedError, match=r"target_vocab\.json: must give each piece an id"):
        convert_tokenizer(path)


def test_a_tokenizer_of_another_number_of_vocabularies_than_its_model_is_refused(tmp_path):
    two = convert_tokenizer(with_two_vocabularies(tmp_path))
    text, sizes = two.to_json(), [two.vocab_size, two.target.vocab_size]
    padded = Tokenizer.from_json(text, vocab_size=sizes[1] + 5, source_vocab_size=sizes[0] + 3)
    assert (padded.vocab_size, padded.target.vocab_size) == (sizes[0] + 3, sizes[1] + 5)
    with pytest.raises(TokenizerError, match="has two vocabularies, the model one"):
        Tokenizer.from_json(text, vocab_size=max(sizes))
    with pytest.raises(TokenizerError, match=f"at most the model's {sizes[0] - 1} entries of sources, got {sizes[0]}"):
        Tokenizer.from_json(text, vocab_size=sizes[1], source_vocab_size=sizes[0] - 1)
    with pytest.raises(TokenizerError, match=f"at most the model's {sizes[1] - 1} entries, got {sizes[1]}"):
        Tokenizer.from_json(text, vocab_size=sizes[1] - 1, source_vocab_size=sizes[0])
    one = Tokenizer.train(["a b"], kind="words", vocab_size=9).to_json()
    with pytest.raises(TokenizerError, match="has one vocabulary, the model two"):
        Tokenizer.from_json(one, vocab_size=9, source_vocab_size=9)


@pytest.mark.slow
def test_marian_matches_transformers_on_many_lines(marian):
    theirs, ours = marian
    texts = plain(lines(MANY, 8))
    assert ours.encode_batch(texts) == theirs(texts, add_special_tokens=False).input_ids


def test_m2m_ids_come_from_the_vocabulary_and_languages_follow(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = trained(**MODELS["bpe"])
    names = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces(model)[3:])]
    (tmp_path / "vocab.json").write_text(json.dumps({name: token for token, name in enumerate(names)}))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    theirs = transformers.M2M100Tokenizer(
        vocab_file=str(tmp_path / "vocab.json"), spm_file=str(tmp_path / "sentencepiece.bpe.model")
    )
    theirs.save_pretrained(tmp_path)
    ours = convert_tokenizer(tmp_path)
    texts = plain(lines(FEW, 9))
    assert ours.encode_batch(texts) == theirs(texts, add_special_tokens=False).input_ids
    codes = [name for name in ours.special if name.startswith("__")]
    assert [ours.special[name] for name in codes] == [theirs.get_lang_id(name.strip("_")) for name in codes]
    assert [ours.special[name] for name in codes] == list(range(len(names), len(names) + 100))
    (tmp_path / "tokenizer_config.json").write_text('{"language_codes": "wmt21"}')
    with pytest.raises(PretrainedError, match="language_codes 'wmt21' are not known"):
        convert_tokenizer(tmp_path)


def test_byte_level_files(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    theirs = ByteLevelBPETokenizer()
    theirs.train_from_iterator(lines(200, 10), vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False)
    theirs.save_model(str(tmp_path))
    ours = convert_tokenizer(tmp_path)
    for text in lines(FEW, 11):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids or "<|endoftext|>" in text
        assert ours.decode(ours.encode(text)) == text
    assert ours.special == {"<|endoftext|>": 0}
    assert 0 not in ours.encode("a<|endoftext|>")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(PretrainedError, match=r"do not define how qwen2 splits words; save it with a tokenizer\.json"):
        convert_tokenizer(tmp_path)


@pytest.mark.parametrize("lowers", [True, False])
def test_wordpiece_files(lowers, tmp_path):
    from tokenizers import BertWordPieceTokenizer

    theirs = BertWordPieceTokenizer(lowercase=lowers, strip_accents=None)
    theirs.train_from_iterator(lines(200, 12), vocab_size=700, show_progress=False)
    theirs.save_model(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowers}))
    ours = convert_tokenizer(tmp_path)
    for text in lines(FEW, 13):
        if not re.search(r"\[\w+\]", text):
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text) == ids
            assert ours.decode(ids) == theirs.decode(ids)
    assert set(ours.special) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert ours.special["[MASK]"] not in ours.encode("a [MASK] b")


def test_a_tokenizer_json_is_used_unchanged(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained(**MODELS["unigram"]))
    converted = convert_tokenizer(tmp_path)
    converted.save(tmp_path / "tokenizer.json")
    (tmp_path / "spiece.model").write_bytes(b"")
    assert convert_tokenizer(tmp_path).to_json() == converted.to_json()


# ---- how texts match added tokens


def byte_level(path, **named):
    """The files of a byte-level tokenizer with the special tokens of fairseq."""
    from tokenizers import ByteLevelBPETokenizer

    trainer = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(lines(200, 10), vocab_size=500, special_tokens=names, show_progress=False)
    trainer.save_model(str(path))
    (path / "tokenizer_config.json").write_text(json.dumps(named))


MASKED = ["a <mask> b", "a  <mask>  b", " <mask>b", "a<mask>", "<mask>", "a <mask><mask> b"]


def masks_read(path):
    """The ids of texts with masks, as a service of masks reads them."""
    tokenizer = convert_tokenizer(path)
    reading = tokenizer.matching_special(tokenizer.special["<mask>"])
    return [reading.encode(text) for text in MASKED]


@pytest.mark.parametrize("name", ["RobertaTokenizer", "BartTokenizer"])
@pytest.mark.parametrize("flags", [{"lstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {}])
def test_added_tokens_absorb_blanks_as_their_flags_say(name, flags, tmp_path):
    transformers = pytest.importorskip("transformers")
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    byte_level(
        tmp_path, tokenizer_class=name, mask_token={"__type": "AddedToken", "content": "<mask>", **plain, **flags}
    )
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    assert masks_read(tmp_path) == [theirs(text, add_special_tokens=False).input_ids for text in MASKED]
    decoded = {"4": {"content": "<mask>", "special": True, **plain, **flags}}
    byte_level(tmp_path, tokenizer_class=name, added_tokens_decoder=decoded)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    assert masks_read(tmp_path) == [theirs(text, add_special_tokens=False).input_ids for text in MASKED]


def test_masks_of_roberta_absorb_the_blanks_before_them_without_a_flag(tmp_path):
    transformers = pytest.importorskip("transformers")
    byte_level(tmp_path, tokenizer_class="RobertaTokenizer", mask_token="<mask>")
    # transformers 5 drops the flag of the class; its tokenizer.json of roberta-base has it
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path, mask_token=mask)
    assert masks_read(tmp_path) == [theirs(text, add_special_tokens=False).input_ids for text in MASKED]


def test_the_flags_of_a_sentencepiece_model_s_tokens_are_in_the_file(tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained(**MODELS["unigram"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
    flags = {
        item["content"]: item["lstrip"] for item in json.loads(convert_tokenizer(tmp_path).to_json())["added_tokens"]
    }
    assert [name for name, absorbs in flags.items() if absorbs] == ["<mask>"]


# ---- what is refused


@pytest.mark.parametrize(
    ("config", "named", "problem"),
    [
        (
            {},
            {"tokenizer_class": "BertJapaneseTokenizer"},
            "tokenizer_class BertJapaneseTokenizer with vocab.txt is not",
        ),
        (
            {"tokenizer_class": "BertJapaneseTokenizer"},
            {"do_lower_case": False},
            "tokenizer_class BertJapaneseTokenizer",
        ),
        ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}, "tokenizer_class PreTrainedTokenizer with vocab.txt"),
        ({}, {"word_tokenizer_type": "mecab"}, "word_tokenizer_type mecab .* covered: basic; save it with a tokenizer"),
        ({}, {"subword_tokenizer_type": "character"}, "subword_tokenizer_type character .* covered: wordpiece"),
    ],
)
def test_a_vocabulary_of_another_tokenizer_than_bert_s_is_refused(config, named, problem, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for name in ("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizerFast"):
        plain = {"tokenizer_class": name, "word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(plain))
        assert convert_tokenizer(tmp_path).encode("A") == [5]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(PretrainedError, match=problem):
        convert_tokenizer(tmp_path)


def test_a_directory_without_a_tokenizer_lists_what_is_covered(tmp_path):
    with pytest.raises(
        PretrainedError, match=r"has no tokenizer that is covered; covered: tokenizer\.json; source\.spm and"
    ):
        convert_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    with pytest.raises(PretrainedError, match=r"vocab\.txt: cannot be read"):
        convert_tokenizer(tmp_path)
