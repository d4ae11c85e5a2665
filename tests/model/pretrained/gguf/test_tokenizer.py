"""Tokenizers in the metadata of GGUF files against those from which the metadata were made."""

import io
import json
import unicodedata

import pytest
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError, read_json
from model.pretrained.frame import frame_of
from model.pretrained.gguf.file import read_gguf
from model.pretrained.gguf.folder import as_folder
from model.pretrained.gguf.tokenizer import WORDS, words_of
from tests.decoders import make_decoder
from tests.gguf_files import gguf_of

LINES = (
    "The harbour lies 12 miles north of the town, and its lights can be seen from 345 ships.",
    "She didn't say that they'd come; WE'LL see whether it's true, I'm sure.",
    "for i in range(100):\n    print(i, '\\t', i ** 2)  # squares\n",
    "Größe, naïve, Ελλάδα, дом, 日本語, 한국어 and e\u0301 are words; 2024-11-28 is a date.",
) * 3
TEXTS = (
    *LINES[:4],
    *("", " ", "\n\n \t", "  two  spaces ", "3 33 333 3333 3.14 1,000", "x²½Ⅷ①٣", "camelCase HTTPServer /path//to"),
    *(
        "a<|end|>b<think>c",
        "<s>no start</s>",
        "▁a▁b",
        "🤗👨‍👩‍👧",
        "I'LL We've CAN'T",
        "e\u0301 ü u\u0308",
        "Gr\u00f6ße   x",
    ),
)


def unpacked(path, tokenizer, **changes):
    """The tokenizer of a file, its tokenizer.json and the tokens around a text."""
    model = make_decoder("llama", vocab_size=len(tokenizer["tokenizer.ggml.tokens"]))
    with as_folder(gguf_of(path / "model.gguf", model, tokenizer=tokenizer, **changes)) as (folder, _):
        return convert_tokenizer(folder), read_json(folder / "tokenizer.json"), frame_of(folder)


def byte_level(split, *, whole=False, composed=False):
    """A tokenizer of the library that splits texts at once, or first as given."""
    first = [pre_tokenizers.Split(Regex(split), "isolated")] if isinstance(split, str) else split
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not isinstance(split, str))
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, by_byte])
    tokenizer.decoder = decoders.ByteLevel()
    if composed:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<|start|>", "<|end|>")])
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in ("<think>", "   ", "Größe")])
    tokenizer.encode_special_tokens = True
    return tokenizer


def metadata_of(tokenizer, pre):
    """The keys that the converter writes of it, for a model with three entries more."""
    values = json.loads(tokenizer.to_str())
    flags = {item["id"]: 3 if item["special"] else 4 for item in values["added_tokens"]}
    texts = {token: text for text, token in tokenizer.get_vocab().items()}
    size = len(texts)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [texts.get(token, f"[PAD{token}]") for token in range(size + 3)],
        "tokenizer.ggml.token_type": [flags.get(token, 1 if token < size else 5) for token in range(size + 3)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in values["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id("<|start|>"),
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id("<|end|>"),
    }


DIGITS = [pre_tokenizers.Digits(individual_digits=True)]


@pytest.mark.parametrize(
    ("pre", "split", "options"),
    [
        ("gpt-2", [], {}),
        ("smollm", DIGITS, {}),
        ("llama-bpe", GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"], {"whole": True}),
        ("dbrx", GGUF_PRE_TOKENIZER_SPLITS["dbrx"], {}),
        ("qwen2", GGUF_PRE_TOKENIZER_SPLITS["qwen2"], {"composed": True}),
        ("tekken", GGUF_PRE_TOKENIZER_SPLITS["tekken"], {"whole": True}),
        ("gpt-4o", GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"], {}),
    ],
)
def test_byte_level_tokens_are_those_of_the_original(pre, split, options, tmp_path):
    theirs = byte_level(split, **options)
    ours, _, frame = unpacked(tmp_path, metadata_of(theirs, pre))
    for text in TEXTS:
        tokens = ours.encode(text)
        assert tokens == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(tokens) == (unicodedata.normalize("NFC", text) if "composed" in options else text)
    assert ours.special == {name: theirs.token_to_id(name) for name in ("<|start|>", "<|end|>")}
    assert ours.vocab_size == theirs.get_vocab_size()
    begins = {"llama-bpe", "tekken"}  # where the metadata leave it open
    assert frame.before == ((theirs.token_to_id("<|start|>"),) if pre in begins else ())


def test_the_splits_are_those_of_transformers():
    shared = WORDS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {name: words_of(name) for name in shared} == {name: GGUF_PRE_TOKENIZER_SPLITS[name] for name in shared}
    assert WORDS.keys() - shared == {"gpt-2", "phi-2", "smollm", "starcoder", "refact"}  # plain, or digits one by one


def sentencepiece_model(**options):
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in LINES for line in text.splitlines()]),
        model_writer=file,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<think>", "▁▁"],
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())


def pieces_of(model):
    """The keys that the converter writes of it, for a model with one entry more."""
    size = model.vocab_size()
    texts, own = [model.id_to_piece(token) for token in range(size)], ("<think>", "▁▁")

    def kind(token):
        if model.is_unknown(token) or model.is_control(token):
            return 2 if model.is_unknown(token) else 3
        return 6 if model.is_byte(token) else 4 if texts[token] in own else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*(text.replace("▁", " ") if text in own else text for text in texts), "[PAD]"],
        "tokenizer.ggml.scores": [*(model.get_score(token) for token in range(size)), -1e4],
        "tokenizer.ggml.token_type": [*map(kind, range(size)), 5],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


@pytest.mark.parametrize("has_prefix", [True, False])
def test_pieces_are_those_of_sentencepiece(has_prefix, tmp_path):
    theirs = sentencepiece_model(add_dummy_prefix=has_prefix)
    metadata = pieces_of(theirs)
    if not has_prefix:
        metadata["tokenizer.ggml.add_space_prefix"] = False
        metadata["tokenizer.ggml.token_type"][theirs.unk_id()] = 3  # as of Gemma, where the id alone tells
    ours, _, frame = unpacked(tmp_path, metadata)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert (ours.vocab_size, frame.before, frame.after) == (420, (theirs.bos_id(),), ())
    assert not unpacked(tmp_path, metadata, tokenizer__ggml__add_bos_token=False)[2].before


def test_merges_go_before_scores(tmp_path):
    metadata = pieces_of(sentencepiece_model())
    ours, values, _ = unpacked(tmp_path, metadata)
    merges = [" ".join(pair) for pair in values["model"]["merges"]]
    metadata["tokenizer.ggml.scores"] = [-1000.0] * len(metadata["tokenizer.ggml.tokens"])
    with pytest.raises(PretrainedError, match=r"tokenizer.ggml.scores order no merges: all are equal; put the tok"):
        unpacked(tmp_path, metadata)
    again, _, _ = unpacked(tmp_path, metadata, tokenizer__ggml__merges=merges)
    assert all(again.encode(text) == ours.encode(text) for text in TEXTS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, r"tokenizer.ggml.model 'bert' is not covered; covered: 'gpt2', 'llama'"),
        ({"model": ...}, r"tokenizer.ggml.model None is not covered"),
        (
            {"pre": "default"},
            r"tokenizer.ggml.pre 'default' is not covered; covered: dbrx, .*; or put the tokenizer.js",
        ),
        ({"pre": ...}, r"tokenizer.ggml.pre '' is not covered; covered: dbrx"),
        ({"merges": ...}, r"tokenizer.ggml.merges is missing"),
        ({"merges": ["a b c"]}, r"tokenizer.ggml.merges: 'a b c' must be two pieces"),
        ({"merges": ["? nope"]}, r"not a tokenizer.json"),
        ({"token_type": [1]}, r"tokenizer.ggml.token_type must have one type for each of tokenizer.ggml.tokens"),
        ({"token_type": ...}, r"tokenizer.ggml.token_type is missing"),
        ({"tokens": [1, 2]}, r"tokenizer.ggml.tokens must be a list of str, got \[1, 2\]"),
        ({"merges": "a b"}, r"tokenizer.ggml.merges must be a list of str, got 'a b'"),
        ({"pre": ["gpt-2"]}, r"tokenizer.ggml.pre \"\['gpt-2'\]\" is not covered"),
        ({"add_bos_token": "no"}, r"tokenizer.ggml.add_bos_token 'no' is not covered; covered: True, False"),
        ({"eos_token_id": 9999}, r"tokenizer.ggml.eos_token_id must be the id of a token, 0\.\.\d+, got 9999"),
        ({"add_space_prefix": True}, r"tokenizer.ggml.add_space_prefix True is not covered; put the tokenizer.json"),
        ({"add_bos_token": True, "bos_token_id": ...}, r"tokenizer.ggml.bos_token_id is missing, and a text has"),
    ],
)
def test_what_metadata_leave_open_is_refused(changes, problem, tmp_path):
    metadata = metadata_of(byte_level([]), "gpt-2")
    with pytest.raises(PretrainedError, match=problem):
        unpacked(tmp_path, metadata, **{f"tokenizer__ggml__{name}": value for name, value in changes.items()})


def test_tokens_must_be_distinct(tmp_path):
    metadata = metadata_of(byte_level([]), "gpt-2")
    metadata["tokenizer.ggml.tokens"][7] = metadata["tokenizer.ggml.tokens"][8]
    with pytest.raises(PretrainedError, match=r"tokenizer.ggml.tokens: '.' must stand there once"):
        unpacked(tmp_path, metadata)


def test_a_tokenizer_beside_the_file_is_taken_if_its_tokens_are_the_same(tmp_path):
    theirs = byte_level(r"\S+|\s+")
    metadata = metadata_of(theirs, "unheard-of")
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours, values, frame = unpacked(tmp_path, metadata, tokenizer__ggml__add_bos_token=True)
    assert all(ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids for text in TEXTS)
    assert frame.before == (theirs.token_to_id("<|start|>"),), "the metadata decide"
    with as_folder(tmp_path / "model.gguf") as (_, stored):
        assert [file.name for file in stored.files] == ["model.gguf", "tokenizer.json"]
    names = values["model"]["vocab"]
    names["Ġship"], names["Ġthe"] = 300, 301
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(
        PretrainedError, match=r"tokenizer.json: is the tokenizer of another model: token 300 is 'Ġship"
    ):
        unpacked(tmp_path, metadata)


def test_ends_and_templates_are_those_of_the_metadata(tmp_path):
    theirs = byte_level([])
    changes = {
        "tokenizer__ggml__eot_token_id": theirs.token_to_id("<think>"),
        "tokenizer__ggml__padding_token_id": theirs.token_to_id("<|end|>"),
        "tokenizer__chat_template": "{{ bos_token }}{{ messages }}",
        "tokenizer__chat_template__rag": "{{ documents }}",
        "tokenizer__chat_templates": ["rag"],
    }
    model = make_decoder("llama", vocab_size=theirs.get_vocab_size() + 3)
    metadata = metadata_of(theirs, "gpt-2")
    path = gguf_of(tmp_path / "model.gguf", model, tokenizer=metadata, **changes)
    with as_folder(path) as (folder, _):
        config, tokens = (read_json(folder / name) for name in ("config.json", "tokenizer_config.json"))
    assert config["eos_token_id"] == [theirs.token_to_id(name) for name in ("<|end|>", "<think>")]
    assert tokens == {
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "chat_template": [
            {"name": "default", "template": "{{ bos_token }}{{ messages }}"},
            {"name": "rag", "template": "{{ documents }}"},
        ],
    }
    assert read_gguf(path).fields.need("tokenizer.chat_templates") == ["rag"]
