"""docs/batches.md: its limits are those of the code."""

import re
from pathlib import Path

from service.edge.calls.items import HELD
from service.settings.config import ServerSettings

PAGE = (Path(__file__).parents[1] / "docs/batches.md").read_text(encoding="utf-8")


def test_limits_are_those_of_the_code():
    assert re.findall(r"\| (\d+) times as many as may be in flight", PAGE) == [str(HELD)]
    defaults = {name: field.default for name, field in ServerSettings.model_fields.items()}
    for flag, seconds in re.findall(r"`--([\w-]+)` \((\d+) s\)", PAGE):
        assert defaults[flag.replace("-", "_")] == int(seconds), flag
