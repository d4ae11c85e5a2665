"""All claims, in the order of the page."""

from __future__ import annotations

from lectures import (
    alignment,
    bottleneck,
    cache,
    documents,
    equivariance,
    extrapolation,
    heads,
    norms,
    pooling,
    prefill,
    recurrence,
    specialists,
)
from lectures.claim import Claim

CLAIMS: tuple[Claim, ...] = (
    bottleneck.CLAIM,
    alignment.CLAIM,
    pooling.CLAIM,
    recurrence.CLAIM,
    equivariance.CLAIM,
    extrapolation.CLAIM,
    heads.CLAIM,
    specialists.CLAIM,
    norms.CLAIM,
    prefill.CLAIM,
    cache.CLAIM,
    documents.CLAIM,
)
