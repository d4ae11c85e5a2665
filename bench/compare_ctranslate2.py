"""Compare answers with CTranslate2 on the same weights: greedy, beam search and patience.

What is not comparable (its `src/decoding.cc`): with a length penalty of 0 it stops at the first step whose best
candidate ends, so only the best answer is comparable; a forced prefix adds nothing to its scores; masks
(shortest length, repeated n-grams) are set before its softmax, so the remaining tokens are renormalized; the repetition
penalty spares the start token, which moves scores by some 1e-4; the coverage penalty reads only its alignment heads.
It supports no early stopping other than `true`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.case import case
from bench.peer_answers import Ask, Found, Options, arguments, compare
from bench.peers import NotRepresentable, ctranslate2_model
from model.checkpoints.checkpoint import Checkpoint
from model.transformer import EncoderDecoder

SETTINGS: dict[str, Options] = {
    "greedy": {},
    "beam 4": {"beam_size": 4, "num_hypotheses": 4},
    "beam 8": {"beam_size": 8, "num_hypotheses": 8},
    "beam 4, length penalty 0.6": {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    "beam 4, length penalty 2": {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 2.0},
    "beam 4, length penalty 0, best only": {"beam_size": 4, "length_penalty": 0.0},
    "beam 4, patience 2": {"beam_size": 4, "num_hypotheses": 4, "patience": 2.0},
    "beam 4, at most 5 tokens": {"beam_size": 4, "num_hypotheses": 4, "max_tokens": 5},
    "beam 4, repetition penalty 1.3": {"beam_size": 4, "num_hypotheses": 4, "repetition_penalty": 1.3},
    "greedy, at least 20 tokens, no bigram twice": {"min_tokens": 20, "no_repeat_ngram_size": 2},
}


def ask_ctranslate2(checkpoint: Checkpoint) -> Ask:
    if not isinstance(checkpoint.model, EncoderDecoder):
        raise NotRepresentable("only encoder-decoders are compared with CTranslate2")
    with tempfile.TemporaryDirectory() as directory:
        translator = ctranslate2_model(checkpoint.model, Path(directory))

    def ask(sources: Sequence[Sequence[int]], options: Options) -> list[list[Found]]:
        answers = translator.translate_batch(
            [[str(token) for token in source] for source in sources],
            max_batch_size=32,
            max_input_length=0,
            beam_size=options.get("beam_size", 1),
            num_hypotheses=options.get("num_hypotheses", 1),
            length_penalty=options.get("length_penalty", 1.0),
            patience=options.get("patience", 1.0),
            max_decoding_length=options["max_tokens"],
            repetition_penalty=options.get("repetition_penalty", 1.0),
            no_repeat_ngram_size=options.get("no_repeat_ngram_size", 0),
            min_decoding_length=options.get("min_tokens", 0),  # its default, 1, forbids the empty answer
            return_end_token=True,  # changes no score: the length it divides by always counts the end token
            return_scores=True,
        )
        return [
            [
                Found(tuple(int(token) for token in tokens), score)
                for tokens, score in zip(answer.hypotheses, answer.scores, strict=True)
            ]
            for answer in answers
        ]

    return ask


@case("checkpoint", "bundle?", **arguments(SETTINGS))
def compare_ctranslate2(args: argparse.Namespace) -> None:
    compare(args, ask_ctranslate2, SETTINGS)
