"""The kinds of tokenizer.json in published checkpoints, trained on generated text."""

import json

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from model.pretrained.convert_tokenizer import convert_tokenizer
from tests.model.tokenizers.spm import MODELS, trained
from tests.multilingual import lines

CORPUS = lines(300, 21)


def gpt2(tmp_path):
    """Special tokens after the others, as in GPT-2. With a frame, truncation and padding, as some files have."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(["<|endoftext|>", "</s>", "<s>"])
    library.add_tokens([AddedToken("[tool]", normalized=False), AddedToken(" née", normalized=False)])
    library.post_processor = processors.RobertaProcessing(("</s>", 501), ("<s>", 502))
    library.enable_truncation(3)
    library.enable_padding(length=64)
    return library


def llama3(tmp_path):
    """Words split by a pattern; ids of special tokens far after the vocabulary, with gaps."""
    library = gpt2(tmp_path)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?i:'s|'t)|\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    values = json.loads(library.to_str())
    values["model"]["ignore_merges"] = True
    size = len(values["model"]["vocab"])
    for place, item in enumerate(values["added_tokens"]):
        item["id"] = size + 7 * (place + 1)
    values["post_processor"] = values["truncation"] = values["padding"] = None
    return values


def bert(tmp_path):
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    )
    return library


def t5(tmp_path):
    """Unigram after Metaspace; its special tokens are pieces with a score."""
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    library.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    return library


def llama2(tmp_path):
    """BPE over marked blanks, unknown characters byte by byte."""
    (tmp_path / "tokenizer.model").write_bytes(trained(**MODELS["bpe-bytes"]))
    values = json.loads(convert_tokenizer(tmp_path).to_json())
    del values["normalizer"]["sentencepiece"]
    return values


def gemma(tmp_path):
    """The same without a first blank."""
    values = llama2(tmp_path)
    values["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    values["decoder"]["decoders"].pop()
    return values


FAMILIES = {maker.__name__: maker for maker in (gpt2, llama3, bert, t5, llama2, gemma)}


def made(name, tmp_path):
    """The values of a family's tokenizer.json."""
    library = FAMILIES[name](tmp_path)
    return json.loads(library.to_str()) if isinstance(library, Library) else library
