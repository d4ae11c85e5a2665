"""SentencePiece models trained on generated text."""

import functools
import io

import sentencepiece

from tests.multilingual import lines

CORPUS = 800  # lines: a second each


@functools.cache
def trained(seed=1, **options):
    """The bytes of a model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(CORPUS, seed)), model_writer=model, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


def processor(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def pieces(model):
    known = processor(model)
    return [known.id_to_piece(token) for token in range(len(known))]


EXACT = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}  # as Llama's: text comes back whole
MODELS = {
    "unigram": {"model_type": "unigram", "vocab_size": 700},
    "unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 1000,
        "byte_fallback": True,
        "normalization_rule_name": "nmt_nfkc_cf",
        "character_coverage": 0.98,
    },
    "unigram-exact": {
        **EXACT,
        "model_type": "unigram",
        "vocab_size": 800,
        "add_dummy_prefix": False,
        "user_defined_symbols": ("[sep]", "ＡＢ", "  "),
    },
    "bpe": {"model_type": "bpe", "vocab_size": 900, "normalization_rule_name": "nfkc"},
    "bpe-bytes": {
        **EXACT,
        "model_type": "bpe",
        "vocab_size": 1000,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "split_digits": True,
        "user_defined_symbols": ("[sep]", "ＡＢ", "  "),
    },
}
