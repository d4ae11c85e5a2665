"""The limits of an engine (`EngineLimits`): one list, from the server's settings to the scheduler and the prediction of
memory.

A field that is made by `_setting` is a setting of `glossa serve`, too: `service.settings.config` makes its flag, its
variable and its YAML key. Nothing here knows where limits are enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from operator import floordiv, truediv
from typing import Any

from export.bundle.manifest import PAD_MULTIPLE


def _setting(
    default: int,
    description: str,
    *,
    ge: int = 0,
    le: int | None = None,
    divide: Callable[[Any, int], float] | None = None,
) -> Any:
    """A limit that users set, of a whole model. divide: what each of several engines gets; None: all of it."""
    return field(default=default, metadata={"description": description, "ge": ge, "le": le, "divide": divide})


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """The limits of one engine; in settings, those of all engines of a model. Raises ValueError for values below the
    least one."""

    max_rows: int = _setting(64, "rows (hypotheses being decoded) per engine", ge=1, le=4096)
    kv_cache_bytes: int = _setting(
        1 << 30, "limit of a model's KV cache in bytes; requests wait for free space", ge=1, divide=floordiv
    )
    max_prefill_tokens: int = _setting(
        256, "limit of source and prompt tokens processed between two tokens of running requests", ge=1
    )
    prefix_cache_bytes: int = _setting(
        1 << 27,
        "limit of a model's prefix cache in bytes, in addition to the KV cache; 0: no prefix cache",
        divide=floordiv,
    )
    parking_bytes: int = _setting(
        1 << 28,
        "limit in bytes of the caches of requests that left their rows to others, in addition to the KV cache; 0: none "
        "leaves them",
        divide=floordiv,
    )
    draft_tokens: int = _setting(
        0, "draft tokens per step by prompt lookup, generation only; 0: none; see docs/decoding.md", le=64
    )
    stream_messages_per_s: float = _setting(
        1000,
        "messages per second of all streams of a model; with more tokens than that, a message carries those of up to "
        "0.1 s, except for a stream's first; 0: a message for every token",
        divide=truediv,
    )

    max_idle_prefill_tokens: int = 1024  # as `max_prefill_tokens`, in a turn without steps; fewer on slow machines
    # Prompt tokens computed in one pass; only whole chunks are reused. On one Zen 4 core, 12 layers of d768 in int8
    # take 608 ms for a prompt of 449 tokens in chunks of 16, 523 of 32, 380 of 64, 332 of 128, 331 of 256, 363 in one.
    chunk_tokens: int = 128
    # Steps of a turn, and about how many seconds they may take together, for one greedy row whose answer is not
    # streamed, while no other request waits. A request that arrives meanwhile waits for them.
    greedy_steps_per_turn: int = 16
    greedy_turn_s: float = field(default=0.01, metadata={"ge": 0})
    failures_until_unhealthy: int = 3  # failed turns in a row

    def __post_init__(self) -> None:
        for limit in fields(self):
            if (value := getattr(self, limit.name)) < (least := _least(limit)):
                raise ValueError(f"{limit.name}: must be at least {least}, got {value}")
        if self.chunk_tokens % PAD_MULTIPLE:
            raise ValueError(f"chunk_tokens: must be a multiple of {PAD_MULTIPLE}, got {self.chunk_tokens}")

    @classmethod
    def of(cls, settings: object) -> EngineLimits:
        """The limits of a model, from settings that have them as attributes."""
        return cls(**{limit.name: getattr(settings, limit.name) for limit in setting_fields()})

    def share(self, engines: int) -> EngineLimits:
        """The limits of each of a model's engines."""
        shares = {
            limit.name: max(_least(limit), divide(getattr(self, limit.name), engines))
            for limit in setting_fields()
            if (divide := limit.metadata["divide"])
        }
        return replace(self, **shares)


def setting_fields() -> list[Field[Any]]:
    """The limits that are settings."""
    return [limit for limit in fields(EngineLimits) if "description" in limit.metadata]


def _least(limit: Field[Any]) -> int:
    least: int = limit.metadata.get("ge", 1)
    return least
