"""Which model of a server translates between two languages (`Routes`): directly, or two of them by way of a third.

A direct model comes before any two. Where several would do, none is chosen: a request must name one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.edge.models.served_model import ServedModel
from service.edge.requests.catalog import Catalog
from service.edge.requests.prompt_encoder import LanguagePair, shorten
from service.errors import InvalidRequest, Unsupported
from service.text.language_codes import LanguageCodes

AUTO = "auto"  # as source_language: the language is detected
PREFERRED = "en"  # of several languages between two models: most are trained from and into English
SHOWN_CODE = 64
SHOWN_PAIRS = 5  # nearest ones, in an error


class Route(NamedTuple):
    """The model that answers. first: the one before it, which translates into `middle`, one of the codes that `first`
    has for the language between; None: the model translates directly."""

    model: ServedModel
    first: ServedModel | None = None
    middle: str = ""


class Pair(NamedTuple):
    """A pair of languages, by tags. models: names of those that translate directly; middles: the languages by way of
    which two do, the one that is taken first."""

    source: str
    target: str
    models: tuple[str, ...] = ()
    middles: tuple[str, ...] = ()


class Routes:
    """The ways through the models of a catalog. Raises InvalidRequest with the field's name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def sources_into(self, target: str) -> tuple[str, ...]:
        """The tags of the languages that are translated into one, also by way of another; of an empty one into any."""
        known = self._known()
        last = [model for model in known if model.directions.serves("", target)]
        first = [
            model
            for model in known
            if any(one.directions.sources.find(code) for one in last for code in model.directions.targets)
        ]
        tags = {tag for model in (*last, *first) for tag in model.directions.sources.tags}
        return tuple(sorted(tag for tag in tags if tag not in LanguageCodes([target] if target else []).tags))

    def direct(self, languages: LanguagePair) -> list[ServedModel]:
        """The models that translate between two languages; an empty one: any."""
        return [model for model in self._known() if model.directions.serves(*languages)]

    def route(self, languages: LanguagePair, pivot: str = "") -> Route:
        """The way between two languages, of which one may be unknown. pivot: must be by way of this one."""
        known = self._known()
        if not known:
            raise Unsupported(
                "no model served here says which languages it translates; name the model, or export it with "
                "--source-language and --target-language"
            )
        direct = [] if pivot else self.direct(languages)
        if len(direct) == 1:
            return Route(direct[0])
        if direct:
            names = ", ".join(model.name for model in direct)
            lacking = [field for field, code in zip(_FIELDS, languages, strict=True) if not code]
            fix = f", or {lacking[0]} given" if lacking else ""
            problem = f"must be named{fix}: several models translate {_shown(languages)}; one of: {names}"
            raise InvalidRequest("model", problem)
        if not languages.source or not languages.target:
            field = _FIELDS[0] if not languages.source else _FIELDS[1]
            if pivot:
                raise InvalidRequest(field, "must be given with pivot_language")
            raise InvalidRequest(field, self._unserved(languages))
        found = _ways(known, languages)
        middles = dict.fromkeys(tag for tag, _ in found)
        if pivot:
            found = [(tag, way) for tag, way in found if way.model.directions.sources.find(pivot) == _entry(way)]
            if not found:
                by = f"by way of {shorten(pivot, SHOWN_CODE)!r}; of: {', '.join(middles) or 'none'}"
                raise InvalidRequest("pivot_language", f"no two models translate {_shown(languages)} {by}")
        elif len(middles) > 1 and PREFERRED in middles:
            found = [(tag, way) for tag, way in found if tag == PREFERRED]
        elif len(middles) > 1:
            problem = f"must be given: two models translate {_shown(languages)} by way of {', '.join(middles)}"
            raise InvalidRequest("pivot_language", problem)
        if not found:
            raise InvalidRequest(_FIELDS[1], self._unserved(languages))
        if len(found) > 1:
            ways = "; ".join(f"{way.first.name} and {way.model.name}" for _, way in found if way.first)
            problem = f"must be named, in two calls: several translate {_shown(languages)} by way of {found[0][0]}"
            raise InvalidRequest("model", f"{problem}: {ways}")
        return found[0][1]

    def pairs(self, source: str = "", target: str = "", *, has_pivots: bool = False) -> list[Pair]:
        """All pairs, sorted. source, target: only those of these languages. Takes a second with hundreds of
        languages."""
        known = self._known()
        direct = dict[tuple[str, str], list[str]]()
        for model in known:
            for one in _tags(model.directions.sources, source):
                for other in _tags(model.directions.targets, target):
                    if one != other:
                        direct.setdefault((one, other), []).append(model.name)
        found = [Pair(*pair, models=tuple(names)) for pair, names in direct.items()]
        if has_pivots:
            sources = {tag for model in known for tag in _tags(model.directions.sources, source)}
            targets = {tag for model in known for tag in _tags(model.directions.targets, target)}
            for one in sources:
                for other in targets:
                    if one != other and (one, other) not in direct:
                        middles = dict.fromkeys(tag for tag, _ in _ways(known, LanguagePair(one, other)))
                        if middles:
                            found.append(Pair(one, other, middles=tuple(sorted(middles, key=_is_other))))
        return sorted(found)

    def _known(self) -> list[ServedModel]:
        return [model for model in self._catalog.defaults if model.directions.are_known]

    def _unserved(self, languages: LanguagePair) -> str:
        """The problem of a pair that nothing serves, with the nearest ones: into its target, then from its source."""
        near = [text for _, text in sorted(near for model in self._known() for near in _near(model, languages))]
        more = f" and {len(near) - SHOWN_PAIRS} more" if len(near) > SHOWN_PAIRS else ""
        return f"no model served here translates {_shown(languages)}; served: {', '.join(near[:SHOWN_PAIRS])}{more}"


_FIELDS = ("source_language", "target_language")


def _shown(languages: LanguagePair) -> str:
    source, target = (shorten(code, SHOWN_CODE) for code in languages)
    return " ".join(part for part in (f"from {source}" * bool(source), f"into {target}" * bool(target)) if part)


def _is_other(tag: str) -> tuple[bool, str]:
    return tag != PREFERRED, tag


def _entry(way: Route) -> str:
    """The code of the language between two models, as the second one has it."""
    return way.model.directions.sources.find(way.middle)


def _ways(known: Sequence[ServedModel], languages: LanguagePair) -> list[tuple[str, Route]]:
    """The ways over two models, each with the tag of the language between them."""
    found = []
    for second in known:
        target = second.directions.targets.find(languages.target)
        if not target:
            continue
        for first in known:
            source = first.directions.sources.find(languages.source)
            if not source or first is second:
                continue
            for tag, middle in first.directions.targets.tags.items():
                entry = second.directions.sources.find(middle)
                if middle != source and entry and entry != target:
                    found.append((tag, Route(second, first, middle)))
    return found


def _tags(codes: LanguageCodes, only: str) -> Iterable[str]:
    return codes.tags if not only else [codes.tag(own) for own in [codes.find(only)] if own]


def _near(model: ServedModel, languages: LanguagePair) -> Iterable[tuple[int, str]]:
    """Pairs of a model, in words: 0 before those into a target that was asked for, 1 from a source, 2 any other."""
    sources, targets = model.directions.sources, model.directions.targets
    source, target = sources.find(languages.source), targets.find(languages.target)
    ones = [source] if source else sorted(sources)[:SHOWN_PAIRS]
    others = [target] if target else sorted(targets)[:SHOWN_PAIRS]
    rank = 0 if target else 1 if source else 2
    return [
        (rank, f"{sources.tag(one)} to {targets.tag(other)} ({model.name})")
        for one in ones
        for other in others
        if one != other
    ]
