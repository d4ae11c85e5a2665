"""Are the token ids of a server those of the uncached PyTorch reference? Every difference is shown with its logit gap.

usage: python -m tests.bench.compare_reference CHECKPOINT BUNDLE TEST.tsv [--sentences 1000]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from glossa import serving
from model.checkpoint import load_checkpoint
from model.data import read_tsv
from model.reference import greedy, next_logits
from model.transformer import Transformer
from service.client import Client


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("checkpoint", type=Path)
    ask.add_argument("bundle", type=Path)
    ask.add_argument("data", type=Path)
    ask.add_argument("--sentences", type=int, default=1000)
    args = ask.parse_args()
    loaded = load_checkpoint(args.checkpoint)
    model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.config
    texts = [source for source, _ in read_tsv([args.data]).pairs[: args.sentences]]
    with serving(args.bundle) as (address, _), Client(address) as client:
        answers = list(client.translate_batch(texts, include_tokens=True))
    differing, started = 0, time.monotonic()
    for text, answer in zip(texts, answers, strict=True):
        source = [*tokenizer.encode(text), config.eos_id]
        expected = greedy(model, [config.bos_id], source=source, max_tokens=config.max_target_len)
        if list(answer.tokens) != expected:
            differing += 1
            print(f"{text}\n  served {answer.text}\n  logit gap {gap(model, source, expected, answer.tokens):.2e}")
    print(f"{len(texts)} sentences, {differing} differ; the reference took {time.monotonic() - started:.0f} s")
    sys.exit(differing > 0)


def gap(model: Transformer, source: list[int], expected: list[int], served: tuple[int, ...]) -> float:
    """How far apart the reference's best two logits are where the served answer first leaves it."""
    pairs = enumerate(zip(expected, served, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(served)))
    best = next_logits(model, [model.config.bos_id, *expected[:place]], source=source).topk(2).values
    return float(best[0] - best[1])


if __name__ == "__main__":
    main()
