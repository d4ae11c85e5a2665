"""How far a request came in its engine, in seconds and tokens: of an answer (`Timings`), and of none (`Progress`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["queue", "encode", "prefill", "decode"]


@dataclass(frozen=True)
class Timings:
    """Seconds: waiting for a row; encoder and prefill; from arrival to the first token; from arrival to the end.

    encoded_s, prefilled_s: from arrival until the encoder had run, and until the whole prompt was computed, turns of
        other requests between its chunks included.
    arrived_s: the time of arrival, on the clock of time.monotonic(), which all processes of a machine share.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    encoded_s: float = 0.0
    prefilled_s: float = 0.0
    arrived_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """An accepted request that its engine ended without an answer.

    stage: in which it ended. prompt_tokens, generated_tokens: as of `Finished`, generated so far.
    timings: until then; of later stages meaningless.
    """

    stage: Stage
    prompt_tokens: int
    generated_tokens: int
    timings: Timings
