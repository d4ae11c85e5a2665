"""Which model translates which pair of languages, and the languages by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glossa.client import AsyncClient
from glossa.v1 import glossa_pb2 as pb
from glossa.web.refusals import Refused

_NAMED = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")  # a model without languages whose name is its pair


@dataclass(frozen=True)
class Pair:
    """A pair of languages and the model that translates it."""

    source: str
    target: str
    model: str
    names_languages: bool  # requests to the model name them

    @property
    def codes(self) -> dict[str, str]:
        """Both languages."""
        return {"source": self.source, "target": self.target}

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a call that translates it."""
        named = {f"{side}_language": code for side, code in self.codes.items()} if self.names_languages else {}
        return {"model": self.model, **named}


def pairs(models: Sequence[pb.Model]) -> list[Pair]:
    """Every pair of languages that some model translates."""
    found = []
    for model in models:
        codes = model.languages
        found += [Pair(one, other, model.name, True) for one in codes for other in codes if one != other]
        if not codes and (match := _NAMED.fullmatch(model.name)):
            found.append(Pair(match[1], match[2], model.name, False))
    return found


def pair_of(known: Sequence[Pair], source: str, target: str) -> Pair:
    """The model for a pair. Raises Refused."""
    for name, code in (("source", source), ("target", target)):
        if not code:
            raise Refused(f"Invalid request: missing {name} parameter")
    found = [pair for pair in known if (pair.source.lower(), pair.target.lower()) == (source.lower(), target.lower())]
    if not found:
        shown = ", ".join(sorted({f"{pair.source}-{pair.target}" for pair in known})) or "none"
        raise Refused(f"{source}-{target}: no model translates this pair; known: {shown[:400]}")
    return found[0]


def listed(known: Sequence[Pair]) -> list[dict[str, Any]]:
    """The languages that can be translated, each with its targets."""
    targets: dict[str, list[str]] = {}
    for pair in known:
        targets.setdefault(pair.source, []).append(pair.target)
    return [{"code": code, "name": code, "targets": sorted(set(found))} for code, found in sorted(targets.items())]


async def detected(client: AsyncClient, text: str) -> list[dict[str, Any]]:
    """The likely languages of a text, best first, with percentages. Raises Refused."""
    raise Refused("this server detects no languages; name the source", 501)
