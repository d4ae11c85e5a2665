"""Are our answers those of Hugging Face `generate` with the same weights? Greedy, and beams with every way to stop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from bench.case import case
from bench.peer_answers import Ask, Found, Options, arguments, compare, cut
from bench.peers import transformers_model
from model.checkpoints.checkpoint import Checkpoint

BATCH = 16
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}
SETTINGS: dict[str, Options] = {
    "greedy": {},
    "beam 4": {"beam_size": 4, "num_hypotheses": 4},
    "beam 8": {"beam_size": 8, "num_hypotheses": 8},
    "beam 4, length penalty 0.6": {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    "beam 4, length penalty 0": {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.0},
    "beam 4, length penalty 2": {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 2.0},
    "beam 4, early stopping false": {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "false"},
    "beam 4, early stopping never": {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "never"},
    "beam 4, at most 5 tokens": {"beam_size": 4, "num_hypotheses": 4, "max_tokens": 5},
    "beam 4, at least 12 tokens": {"beam_size": 4, "num_hypotheses": 4, "min_tokens": 12},
    "beam 4, no word twice": {"beam_size": 4, "num_hypotheses": 4, "no_repeat_ngram_size": 1},
    "greedy, no bigram twice": {"no_repeat_ngram_size": 2, "min_tokens": 20},
    "greedy, repetition penalty 1.3": {"repetition_penalty": 1.3},  # in a beam theirs changes log-probabilities
}


def ask_transformers(checkpoint: Checkpoint) -> Ask:
    model, config = transformers_model(checkpoint.model), checkpoint.config

    @torch.inference_mode()
    def ask_batch(sources: Sequence[Sequence[int]], options: Options) -> list[list[Found]]:
        width, count = max(map(len, sources)), options.get("num_hypotheses", 1)
        padded = torch.tensor([[*source, *[config.pad_id] * (width - len(source))] for source in sources])
        result = model.generate(
            padded,
            attention_mask=torch.tensor([[place < len(source) for place in range(width)] for source in sources]).long(),
            do_sample=False,
            num_beams=options.get("beam_size", 1),
            num_return_sequences=count,
            **(_beam_flags(options) if options.get("beam_size", 1) > 1 else {}),
            max_new_tokens=options["max_tokens"],
            min_new_tokens=options.get("min_tokens"),
            no_repeat_ngram_size=options.get("no_repeat_ngram_size"),
            repetition_penalty=options.get("repetition_penalty"),
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows = [cut(row[1:], config.eos_id) for row in result.sequences.tolist()]
        scores = result.get("sequences_scores", None)
        found = [Found(row, float(scores[i]) if scores is not None else float("nan")) for i, row in enumerate(rows)]
        return [found[first : first + count] for first in range(0, len(found), count)]

    def ask(sources: Sequence[Sequence[int]], options: Options) -> list[list[Found]]:
        batches = [sources[first : first + BATCH] for first in range(0, len(sources), BATCH)]
        return [found for batch in batches for found in ask_batch(batch, options)]

    return ask


def _beam_flags(options: Options) -> Options:
    """What greedy search would warn of."""
    return {
        "length_penalty": options.get("length_penalty", 1.0),
        "early_stopping": EARLY_STOPPING[options.get("early_stopping", "true")],
    }


@case("checkpoint", "bundle?", **arguments(SETTINGS))
def compare_transformers(args: argparse.Namespace) -> None:
    compare(args, ask_transformers, SETTINGS)
