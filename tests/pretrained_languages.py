"""Tiny models of `transformers` with languages: random weights, with tokenizers that both sides read from one file."""

import json
import warnings

import transformers

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from tests.model.tokenizers.spm import MODELS, pieces, trained
from tests.pretrained_seq2seq import TINY, make

SPM, UNIGRAM, BPE = "sentencepiece.bpe.model", MODELS["unigram"], MODELS["bpe"]
SHAPE = TINY._replace(layers=(1, 1))
KINDS = {  # class of the tokenizer, variant of the model, two pairs of its languages
    "mbart": ("MBartTokenizer", "mbart", [("de_DE", "en_XX"), ("fr_XX", "ro_RO")]),
    "mbart50": ("MBart50Tokenizer", "mbart", [("de_DE", "en_XX"), ("sw_KE", "de_DE")]),
    "nllb": ("NllbTokenizer", "m2m_100", [("deu_Latn", "eng_Latn"), ("eng_Latn", "swh_Latn")]),
    "m2m100": ("M2M100Tokenizer", "m2m_100", [("de", "en"), ("en", "sw")]),
    "marian": ("MarianTokenizer", "marian", [("", "fra"), ("", "pt_br")]),
}
NLLB = ["deu_Latn", "eng_Latn", "swh_Latn"]


def saved(kind, path, *, shape=SHAPE, **tokenizer):
    """The directory `path` with a model and its tokenizer. tokenizer: further fields of tokenizer_config.json."""
    path.mkdir(parents=True)
    cls, variant, _ = KINDS[kind]
    languages = {"additional_special_tokens": NLLB} if kind == "nllb" else {}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls, **languages, **tokenizer}))
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces(trained(**BPE))[3:]]
    if kind == "m2m100":
        (path / SPM).write_bytes(trained(**BPE))
    elif kind == "marian":
        names = ["</s>", "<unk>", ">>fra<<", ">>pt_br<<", *pieces(trained(**UNIGRAM))[3:], "<pad>"]
        for side in ("source", "target"):
            (path / f"{side}.spm").write_bytes(trained(**UNIGRAM))
    else:
        (path / SPM).write_bytes(trained(**(BPE if kind == "nllb" else UNIGRAM)))
    if kind in ("m2m100", "marian"):
        (path / "vocab.json").write_text(json.dumps({name: token for token, name in enumerate(names)}))
    ours = convert_tokenizer(path)
    if kind not in ("m2m100", "marian"):
        ours.save(path / "tokenizer.json")  # transformers reads no SentencePiece model of these without tiktoken
    changes = {"decoder_start_token_id": 2} if kind == "mbart50" else {}
    make(variant, shape._replace(vocab_size=ours.vocab_size + (kind != "marian") * 3), **changes).save_pretrained(path)
    return path


def imported(kind, path, **tokenizer):
    """A checkpoint in `path`, and the directory that it comes from."""
    theirs = saved(kind, path / "theirs", **tokenizer)
    import_checkpoint(theirs, path / "ours", convert_tokenizer(theirs))
    return path / "ours", theirs


def read(kind, path, source, target):
    """The library's model in evaluation mode and its tokenizer for a pair of languages."""
    cls, _, _ = KINDS[kind]
    languages = {} if kind == "marian" else {"src_lang": source, "tgt_lang": target}
    if kind == "m2m100":
        languages |= {"vocab_file": str(path / "vocab.json"), "spm_file": str(path / SPM)}
        return model_of(path), transformers.M2M100Tokenizer(**languages)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # the texts are normal already
        return model_of(path), getattr(transformers, cls).from_pretrained(path, **languages)


def model_of(path):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
