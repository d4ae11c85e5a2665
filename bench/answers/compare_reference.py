"""Compare a server's answers with the uncached PyTorch reference, greedy and with beams.

Without data, sentences of the embedded corpus that are not in the training data. Where answers differ, both are scored
by the reference: their ranking scores must agree to within 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench.case import case
from bench.sentences import sentence_pairs
from cli.local_server import serving
from glossa.client import Client
from model.architectures import GenerativeModel
from model.checkpoints.checkpoint import load_checkpoint
from model.reference.beam import beam_search
from model.reference.greedy import greedy, score

TIE = 1e-5


@case("checkpoint", "bundle", "data?", sentences=1000, beam=[1, 4, 8])
def compare_reference(args: argparse.Namespace) -> None:
    loaded = load_checkpoint(args.checkpoint)
    model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.config
    texts = [source for source, _ in sentence_pairs(args.data, args.sentences)]
    failed = 0
    with serving(args.bundle) as (address, _), Client(address, timeout_s=600.0) as client:
        for beam in args.beam:
            answers = list(client.translate_batch(texts, include_tokens=True, beam_size=beam))
            differing = ties = 0
            started = time.monotonic()
            for text, answer in zip(texts, answers, strict=True):
                source = [*tokenizer.encode(text), config.eos_id]
                expected = reference(model, source, beam)
                if list(answer.tokens) == expected:
                    continue
                better = quality(model, source, expected) - quality(model, source, list(answer.tokens))
                differing, ties = differing + 1, ties + (abs(better) < TIE)
                print(f"{text}\n  served {answer.text}\n  the reference's answer scores higher by {better:.2e}")
            seconds = time.monotonic() - started
            print(
                f"beam {beam}: {len(texts)} sentences, {differing} differ, {ties} of them ties; {seconds:.0f} s",
                flush=True,
            )
            failed += differing - ties
    sys.exit(failed > 0)


def reference(model: GenerativeModel, source: list[int], beam: int) -> list[int]:
    config = model.config
    if beam == 1:
        return greedy(model, [config.bos_id], source=source, max_tokens=config.max_target_len)
    found = beam_search(
        model, [config.bos_id], source=source, max_tokens=config.max_target_len, beam_size=beam, early_stopping="true"
    )
    return list(found[0].tokens)


def quality(model: GenerativeModel, source: list[int], tokens: list[int]) -> float:
    """What answers are ranked by: the mean log-probability of a token."""
    logprobs = score(model, [model.config.bos_id], tokens, source=source)
    return sum(logprobs) / len(logprobs)
