"""BLEU and model score of beam search against greedy search.


The model's score of an answer is the mean log-probability of its tokens, which is what beam search ranks by.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from bench.case import Flag, case
from cli.local_server import serving
from glossa.client import Client
from model.training.data.examples import read_tsv
from model.training.evaluate import bleu


@case("bundle", "data", beam=[1, 4, 8], early_stopping=Flag("true", choices=["true", "false", "never"]))
def beam_quality(args: argparse.Namespace) -> None:
    examples = read_tsv([args.data]).pairs
    texts, references = [text for text, _ in examples], [text for _, text in examples]
    first: list[float] = []
    figures = []
    with serving(args.bundle) as (address, _), Client(address, timeout_s=600.0) as client:
        for beam in args.beam:
            options: dict[str, Any] = {"beam_size": beam, "token_logprobs": True}
            if beam > 1:
                options["early_stopping"] = args.early_stopping
            answers = list(client.translate_batch(texts, **options))
            scores = [answer.hypotheses[0].cumulative_logprob / answer.generated_tokens for answer in answers]
            first = first or scores
            figures.append(
                {
                    "beam": beam,
                    "BLEU": round(bleu([answer.text for answer in answers], references).score, 2),
                    "mean score": round(statistics.mean(scores), 5),
                    "better than the first": sum(b > a + 1e-6 for a, b in zip(first, scores, strict=True)),
                    "worse than the first": sum(b < a - 1e-6 for a, b in zip(first, scores, strict=True)),
                    "by at most": round(max(a - b for a, b in zip(first, scores, strict=True)), 4),
                }
            )
    for line in figures:
        print(json.dumps(line) if args.json else "  ".join(f"{name} {value}" for name, value in line.items()))
