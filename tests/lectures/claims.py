"""All claims, in the order of the page."""

from __future__ import annotations

from tests.lectures import alignment, cache, equivariance, extrapolation, heads, norms, prefill, specialists
from tests.lectures.claim import Claim

CLAIMS: tuple[Claim, ...] = (
    alignment.CLAIM,
    equivariance.CLAIM,
    extrapolation.CLAIM,
    heads.CLAIM,
    specialists.CLAIM,
    norms.CLAIM,
    prefill.CLAIM,
    cache.CLAIM,
)
