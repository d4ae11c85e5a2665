"""Where requests that name no version go (`Traffic`): to versions by weights, and always the same for a tenant.

Decisions only: who may set traffic is in `versions`, who follows it is `Catalog` and, of shadows, `calls.shadows`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.errors import InvalidRequest

WHOLE = 100  # the sum of weights
SHADOW = "shadow"  # of request ids: the position of a call among those that are shadowed


class Key(NamedTuple):
    """What decides the version of a request. tenant: empty if none is named."""

    request_id: str
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """weights: of versions, that add up to WHOLE; empty: all requests go to the default. shadow: the version on which
    `shadow_share` of a hundred requests to the default run too; empty: none."""

    weights: tuple[tuple[str, int], ...] = ()
    by_request_id: bool = False
    shadow: str = ""
    shadow_share: int = 0

    @property
    def versions(self) -> frozenset[str]:
        """That may not be stopped."""
        return frozenset([*(version for version, _ in self.weights), *([self.shadow] if self.shadow else [])])

    def weight(self, version: str, *, is_default: bool) -> int:
        """Of a hundred requests, how many go to a version."""
        return dict(self.weights).get(version, 0) if self.weights else WHOLE * is_default

    def version(self, model: str, key: Key) -> str:
        """The version of a request: by the tenant where one is named, else by the request's id. A version whose weight
        grows keeps the requests that it had, if it is the last one."""
        name = key.request_id if self.by_request_id or not key.tenant else key.tenant
        place = position(model, name)
        for version, weight in self.weights:
            place -= weight
            if place < 0:
                return version
        raise AssertionError(self.weights)

    def is_shadowed(self, model: str, request_id: str) -> bool:
        """Whether a request to the default version runs on the shadow too."""
        return bool(self.shadow) and position(model, SHADOW, request_id) < self.shadow_share


NO_TRAFFIC = Traffic()


def position(*names: str) -> int:
    """A number from 0 to 99 that only the names decide, and all of them evenly."""
    digest = hashlib.blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % WHOLE


def checked(traffic: Traffic, model: str, loaded: Collection[str], default: str) -> Traffic:
    """Traffic without weights of 0. loaded: the versions that serve, `default` among them. Raises InvalidRequest."""
    check_shares("weights.", traffic.weights, model, loaded)
    total = sum(weight for _, weight in traffic.weights)
    if traffic.weights and total != WHOLE:
        shown = " + ".join(str(weight) for _, weight in traffic.weights)
        raise InvalidRequest("weights", f"must add up to {WHOLE}, got {shown} = {total}")
    if traffic.shadow or traffic.shadow_share:
        check_shares("shadow.", [(traffic.shadow, traffic.shadow_share)], model, loaded)
        if traffic.shadow == default:
            raise InvalidRequest("shadow.version", f"must not be the default, whose requests it runs; got {default!r}")
    weights = tuple((version, weight) for version, weight in traffic.weights if weight)
    has_shadow = traffic.shadow_share > 0
    return Traffic(
        weights=weights,
        by_request_id=traffic.by_request_id,
        shadow=traffic.shadow if has_shadow else "",
        shadow_share=traffic.shadow_share,
    )


def check_shares(message: str, shares: Sequence[tuple[str, int]], model: str, loaded: Collection[str]) -> None:
    """Raises InvalidRequest for a version that does not serve or comes twice, and for a share that is none. message:
    what comes before the names of its fields."""
    seen = set[str]()
    for version, percent in shares:
        if version in seen:
            raise InvalidRequest(f"{message}version", f"must be named once, got {version[:64]!r} twice")
        seen.add(version)
        if version not in loaded:
            served = ", ".join(sorted(loaded))
            raise InvalidRequest(
                f"{message}version", f"must be a version of model {model} that serves: {served}; got {version[:64]!r}"
            )
        if not 0 <= percent <= WHOLE:
            raise InvalidRequest(f"{message}percent", f"must be 0..{WHOLE}, got {percent} for {version}")
