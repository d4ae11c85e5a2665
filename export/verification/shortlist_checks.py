"""Checks of `project_shortlist` and `shortlist_logprobs`: predictions over per-row shortlists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from export.bundle.manifest import WORD_MULTIPLE
from export.verification.case import Case, capacity_of
from export.verification.inputs import Ids
from export.verification.measure import Comparison
from export.verification.ort_graphs import ShortlistPrediction, round_up
from model.encoder import Encoder

FEWEST_TOKENS = 16  # of a shortlist, because an error over few tokens means little


def shortlists_of(case: Case) -> list[Ids]:
    """Shortlists of various lengths, one per row, in ascending order."""
    random, most = np.random.default_rng(1), case.config.vocab_size
    least = min(FEWEST_TOKENS, most)
    sizes = [least + (len(target) * 7 + row * 5) % (most - least + 1) for row, _, target in case.rows]
    return [tuple(sorted(random.choice(most, size, replace=False).tolist())) for size in sizes]


def _predict(
    case: Case, rows: Sequence[tuple[int, Ids, Ids]], shortlists: Sequence[Ids], width: int
) -> ShortlistPrediction:
    """Predictions of a step at the end of some rows' targets."""
    buffers = case.graphs.buffers(len(rows), capacity_of(case.targets))
    for slot, (_, source, target) in enumerate(rows):
        case.fill(buffers, slot, source, target[:-1])
    tokens, starts = [target[-1] for _, _, target in rows], [len(target) - 1 for _, _, target in rows]
    cross = case.cross([row for row, _, _ in rows])
    return case.graphs.shortlist_logprobs(shortlists, tokens, starts, buffers, cross, width=width)


def predictions(case: Case) -> Iterator[Comparison]:
    """Logits against the product of the same states and the checkpoint's weight, probabilities against their sum, and
    the best tokens against a sort."""
    assert not isinstance(case.plain_model, Encoder)
    unembedding = case.plain_model.decoder.unembedding
    weight_VM = unembedding.weight.detach().double().numpy()
    bias_V = np.zeros(len(weight_VM)) if unembedding.bias is None else unembedding.bias.detach().double().numpy()
    shortlists = shortlists_of(case)
    together = _predict_all(case, shortlists)
    for row, own in enumerate(shortlists):
        ids, logprobs = np.array(own), together.logprobs[row]
        inside, outside = logprobs[: len(ids)], logprobs[len(ids) :]
        logits = together.states[row].astype(np.float64) @ weight_VM[ids].T + bias_V[ids]
        yield f"logits of row {row}", inside + together.normaliser[row], logits
        yield f"sum of row {row}", np.exp(logprobs.astype(np.float64)).sum(keepdims=True), np.ones(1)
        yield f"tokens of row {row} that are not its own", np.isneginf(outside), np.ones(len(outside), bool)
        best = np.argsort(-inside, kind="stable")[: together.top_ids.shape[1]]
        found = together.top_ids[row, : len(best)], together.top_logprobs[row, : len(best)]
        is_sorted = (found[0] == ids[best]) & (found[1] == inside[best])
        yield f"best tokens of row {row}, which must be those of the sorted row", is_sorted, np.ones(len(best), bool)


def predictions_alone(case: Case) -> Iterator[Comparison]:
    """Rows in a batch against the same rows in batches of one with a larger shortlist capacity."""
    shortlists = shortlists_of(case)
    together = _predict_all(case, shortlists)
    for row, own in enumerate(shortlists):
        alone = _predict(case, case.rows[row : row + 1], [own], together.logprobs.shape[1] + WORD_MULTIPLE)
        yield f"logprobs of row {row}", together.logprobs[row, : len(own)], alone.logprobs[0, : len(own)]
        yield f"normaliser of row {row}", together.normaliser[row : row + 1], alone.normaliser


def _predict_all(case: Case, shortlists: Sequence[Ids]) -> ShortlistPrediction:
    return _predict(case, case.rows, shortlists, round_up(max(map(len, shortlists)), WORD_MULTIPLE))
