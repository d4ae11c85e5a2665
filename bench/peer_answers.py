"""Compare answers with a peer on the same weights, and classify every difference.

Our answers come from a server if there is a bundle, else from the uncached reference. A difference is explained when
both answers have one ranking score (a tie), or when noise as small as that of float32 turns the reference's answer into
the other (a close call: two candidates at the edge of the beam). Anything else is a defect of one side, and the exit
code reports it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.case import Flag
from bench.peer_rules import RULES, process_of
from cli.local_server import serving
from glossa.client import Client
from model.checkpoints.checkpoint import Checkpoint, load_checkpoint
from model.corpus.corpus import pairs
from model.reference.beam import beam_search
from model.training.data.examples import read_tsv

TIE = 1e-5  # of a ranking score
NOISE = 1e-5  # of a log-probability, a little above what the peers' logits differ by (bench/peers.py)
NOISY_RUNS = 16
SHOWN = 5  # unexplained differences of a setting that are printed


class Found(NamedTuple):
    """One hypothesis; new tokens with eos where it was produced."""

    tokens: tuple[int, ...]
    score: float


Options = Mapping[str, Any]
"""Fields of service.options.DecodingOptions by name."""

Ask = Callable[[Sequence[Sequence[int]], Options], list[list[Found]]]
"""Sources with their eos → for each its hypotheses, best first."""


def arguments(settings: Mapping[str, Options]) -> dict[str, Any]:
    """Flags of a comparison besides checkpoint and bundle; without a bundle the reference answers."""
    return {
        "data": Flag([], "TSV of pairs; else the embedded corpus", type=Path),
        "count": 30,
        "only": Flag(list(settings), "settings, else all", choices=list(settings)),
    }


def compare(args: argparse.Namespace, ask_peer: Callable[[Checkpoint], Ask], settings: Mapping[str, Options]) -> None:
    """Prints a line for every setting, and exits with 1 when a difference has no explanation.

    ask_peer: builds the peer's model from our checkpoint.
    """
    checkpoint = load_checkpoint(args.checkpoint)
    texts = texts_of(args.data, args.count)
    sources = [[*checkpoint.tokenizer.encode(text), checkpoint.config.eos_id] for text in texts]
    fitting = [i for i, source in enumerate(sources) if len(source) <= checkpoint.config.max_source_len]
    texts, sources = [texts[i] for i in fitting], [sources[i] for i in fitting]
    ask_them, unexplained = ask_peer(checkpoint), 0
    with asking_us(checkpoint, args.bundle) as ask_us:
        for name in args.only:
            options = {"max_tokens": checkpoint.config.max_target_len, **settings[name]}
            started = time.monotonic()
            ours = ask_us(texts, options)
            between = time.monotonic()
            theirs = ask_them(sources, options)
            ended = time.monotonic()
            reasons = Counter[str]()
            for text, source, mine, other in zip(texts, sources, ours, theirs, strict=True):
                if tokens_of(mine) != tokens_of(other):
                    reason = explain(checkpoint, source, options, mine, other)
                    reasons[reason] += 1
                    if reason.startswith("unexplained") and reasons[reason] <= SHOWN:
                        print(shown(checkpoint, text, mine, other))
            unexplained += sum(count for reason, count in reasons.items() if reason.startswith("unexplained"))
            best = sum(mine[0].tokens == other[0].tokens for mine, other in zip(ours, theirs, strict=True))
            print(
                f"{name}: {best}/{len(texts)} best answers equal, "
                f"{len(texts) - reasons.total()}/{len(texts)} whole lists; {dict(reasons) or 'no difference'}; "
                f"score difference {worst_score(ours, theirs):.1e}; "
                f"{between - started:.1f} s and {ended - between:.1f} s",
                flush=True,
            )
    sys.exit(unexplained > 0)


def texts_of(data: Sequence[Path], count: int) -> list[str]:
    if data:
        return [source for source, _ in read_tsv(data).pairs[:count]]
    return [source for source, _ in pairs(seed=1, count=count, split="test")]


@contextmanager
def asking_us(
    checkpoint: Checkpoint, bundle: Path | None
) -> Iterator[Callable[[Sequence[str], Options], list[list[Found]]]]:
    """What answers texts on our side: a server of the bundle, or the reference."""
    if bundle is None:
        yield lambda texts, options: [referenced(checkpoint, text, options) for text in texts]
    else:
        with serving(bundle) as (address, _), Client(address) as client:
            yield lambda texts, options: served(client, texts, options)


def served(client: Client, texts: Sequence[str], options: Options) -> list[list[Found]]:
    """The answers of a server; an only one comes without a list, and without a score."""
    untyped: Any = client.translate_batch
    return [
        [Found(hypothesis.tokens, hypothesis.score) for hypothesis in answer.hypotheses]
        or [Found(answer.tokens, float("nan"))]
        for answer in untyped(texts, include_tokens=True, **options)
    ]


def referenced(checkpoint: Checkpoint, text: str, options: Options) -> list[Found]:
    """The answers of the reference."""
    return _search(checkpoint, [*checkpoint.tokenizer.encode(text), checkpoint.config.eos_id], options)


def _search(
    checkpoint: Checkpoint, source: Sequence[int], options: Options, noise: np.random.Generator | None = None
) -> list[Found]:
    """noise: where small random changes of every log-probability come from."""
    rules = process_of(checkpoint.model, source, options)

    def process(logprobs_V: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        scores_V = logprobs_V if rules is None else rules(logprobs_V, tokens)
        return scores_V if noise is None else scores_V + NOISE * noise.standard_normal(scores_V.shape, np.float32)

    beam = {name: value for name, value in options.items() if name not in RULES}
    found = beam_search(checkpoint.model, [checkpoint.config.bos_id], source=source, process=process, **beam)
    return [Found(hypothesis.tokens, hypothesis.score) for hypothesis in found]


def explain(
    checkpoint: Checkpoint, source: Sequence[int], options: Options, ours: list[Found], theirs: list[Found]
) -> str:
    """Why two lists of hypotheses differ: judged at the first place where they do, by the reference's scores."""
    differing = next((pair for pair in zip(ours, theirs, strict=False) if pair[0].tokens != pair[1].tokens), None)
    if differing is not None:
        mine, other = (ranking_score(checkpoint, source, found.tokens, options) for found in differing)
        if abs(mine - other) < TIE:
            return "tie"
    expected = _search(checkpoint, source, options)
    for seed in range(NOISY_RUNS):
        noisy = _search(checkpoint, source, options, noise=np.random.default_rng(seed))
        if tokens_of(noisy) in (tokens_of(theirs), tokens_of(ours)) and tokens_of(noisy) != tokens_of(expected):
            return "close call"
    if differing is None:
        return f"unexplained: {len(ours)} hypotheses of ours, {len(theirs)} of theirs"
    right = {tokens_of(ours): "ours", tokens_of(theirs): "theirs"}.get(tokens_of(expected), "neither")
    better = "ours" if mine > other else "theirs"
    return f"unexplained: {better} scores better, the reference has {right}"


def ranking_score(checkpoint: Checkpoint, source: Sequence[int], tokens: Sequence[int], options: Options) -> float:
    """What beam search ranks a finished hypothesis by: found by forcing it."""
    forced = {**options, "beam_size": 1, "max_tokens": len(tokens), "prefix": tokens}
    (found,) = _search(checkpoint, source, forced) or [Found((), -np.inf)]  # none: a mask forbids it
    return found.score


def tokens_of(hypotheses: Sequence[Found]) -> tuple[tuple[int, ...], ...]:
    return tuple(hypothesis.tokens for hypothesis in hypotheses)


def worst_score(ours: list[list[Found]], theirs: list[list[Found]]) -> float:
    """The largest difference of two scores of one hypothesis, where both sides have one."""
    differences = [
        abs(mine.score - other.score)
        for pair in zip(ours, theirs, strict=True)
        for mine, other in zip(*pair, strict=False)
        if mine.tokens == other.tokens
    ]
    return max((difference for difference in differences if not np.isnan(difference)), default=0.0)


def shown(checkpoint: Checkpoint, text: str, ours: list[Found], theirs: list[Found]) -> str:
    lines = [text]
    for side, found in (("ours", ours), ("theirs", theirs)):
        lines += [
            f"  {side:6} {hypothesis.score:.6f} {checkpoint.tokenizer.decode(hypothesis.tokens)} {hypothesis.tokens}"
            for hypothesis in found
        ]
    return "\n".join(lines)


def cut(tokens: Sequence[int], eos_id: int) -> tuple[int, ...]:
    """Tokens up to the first eos: the rest is padding."""
    return tuple(tokens[: tokens.index(eos_id) + 1]) if eos_id in tokens else tuple(tokens)
