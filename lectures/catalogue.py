"""All claims, in the order of the page."""

from __future__ import annotations

from lectures.claim import Claim
from lectures.claims import (
    ablations,
    alignment,
    bottleneck,
    cache,
    coreference,
    documents,
    equivariance,
    extrapolation,
    heads,
    norms,
    overflow,
    pooling,
    prefill,
    reach,
    recurrence,
    senses,
    specialists,
    tagging,
)

CLAIMS: tuple[Claim, ...] = (
    bottleneck.CLAIM,
    alignment.CLAIM,
    pooling.CLAIM,
    senses.CLAIM,
    tagging.CLAIM,
    recurrence.CLAIM,
    reach.CLAIM,
    equivariance.CLAIM,
    extrapolation.CLAIM,
    heads.CLAIM,
    specialists.CLAIM,
    coreference.CLAIM,
    overflow.CLAIM,
    norms.CLAIM,
    ablations.CLAIM,
    prefill.CLAIM,
    cache.CLAIM,
    documents.CLAIM,
)
