"""What has become of the items of one call (`ItemCounts`), for its log line and its span."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from service.edge.observability.call_trace import Value


class ItemCounts:
    """What has become of the items of one call."""

    def __init__(self) -> None:
        self.begun = self.answered = self.prompt_tokens = self.generated_tokens = 0
        self.failed: Counter[str] = Counter()  # by reason

    @property
    def fields(self) -> Mapping[str, Any]:
        """For the log line of the call."""
        failures = {"failures": dict(sorted(self.failed.items()))} if self.failed else {}
        tokens = {"prompt_tokens": self.prompt_tokens, "generated_tokens": self.generated_tokens}
        return {"items": self.begun, "answered": self.answered, **failures, **tokens}

    @property
    def attributes(self) -> Mapping[str, Value]:
        """For the span of the call."""
        return {
            "glossa.items": self.begun,
            "glossa.items_failed": self.failed.total(),
            "gen_ai.usage.input_tokens": self.prompt_tokens,
            "gen_ai.usage.output_tokens": self.generated_tokens,
        }
