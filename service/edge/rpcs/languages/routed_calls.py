"""The model that a request to translate is for, by its name or its languages, and the language of its text
(`RoutedCalls`). What serves which pair is in `language_routes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.models.served_model import ServedModel
from service.edge.requests.detected_language import detected
from service.edge.requests.language_routes import AUTO, Route, Routes
from service.edge.requests.prompt_encoder import LanguagePair
from service.edge.rpcs.item_calls import ItemCalls
from service.errors import InvalidRequest, Unsupported
from service.text.language_detection import MAX_CHARACTERS, Guess, is_loaded, load

_TAG = re.compile(r"<[^<>]{1,1024}>")
_LOOKED_AT = 8 * MAX_CHARACTERS  # of a text with tags


class Routed(NamedTuple):
    """How a request is answered. is_chosen: its languages chose the models, not a name. guess: the language of its
    text, if it was to be detected."""

    route: Route
    is_chosen: bool = False
    guess: Guess | None = None

    def note(self, response: Any) -> None:
        """Writes it into a response, or the end of a stream or document."""
        if self.guess is not None:
            response.detected_language.CopyFrom(pb.DetectedLanguage(**self.guess._asdict()))
        if self.is_chosen and not response.HasField("route"):
            response.route.CopyFrom(route_message(self.route))


def route_message(route: Route, middle: str = "") -> Any:
    """A route as a message. middle: the text between two models."""
    if route.first is None:
        return pb.TranslationRoute(model=route.model.name)
    entry = route.model.directions.sources.find(route.middle)
    return pb.TranslationRoute(
        model=route.model.name, first_model=route.first.name, pivot_language=entry, pivot_text=middle
    )


class RoutedCalls(ItemCalls):
    """Calls to models that translate. Event-loop thread only."""

    async def routed(self, request: Any, call: Call, *, sample: str | None = None, is_logged: bool = True) -> Routed:
        """The models for a request, in use until the call ends. An `auto` in it becomes the language that was detected.
        sample: text to detect it in, by default that of the request. is_logged: the request's text is, if any is.
        Raises InvalidRequest, ModelNotFound and Unsupported."""
        if self.log_text and is_logged:
            call.record.note(text=request.text)
        guess = await self.detected_source(request, call, sample) if request.source_language == AUTO else None
        if not self._chooses(request, call):
            return Routed(Route(self.find(request.model, call, "translation", by_prompt=True)), guess=guess)
        route = self.routes.route(
            LanguagePair(request.source_language, request.target_language), request.pivot_language
        )
        return Routed(self.taken(route, call), is_chosen=True, guess=guess)

    def route_of_items(self, defaults: Any, call: Call) -> Route:
        """The models for all items of a call, in use until it ends. defaults: what the items share. Raises as
        `routed`."""
        if not self._chooses(defaults, call):
            return Route(self.find(defaults.model, call, "translation", by_prompt=True))
        languages = LanguagePair(defaults.source_language, defaults.target_language)
        if languages.source == AUTO:
            languages = LanguagePair("", languages.target)
            if len(self.routes.direct(languages)) != 1 or defaults.pivot_language:
                problem = "must be named with source_language auto, because all items of a call have one model"
                raise InvalidRequest("model", f"{problem}; make a call for each language")
        return self.taken(self.routes.route(languages, defaults.pivot_language), call)

    async def routed_item(self, route: Route, request: Any, item: Call) -> Routed:
        """How an item of a call is answered whose items are by two models."""
        assert route.first is not None
        item.use(route.model)
        if request.source_language != AUTO:
            return Routed(route, is_chosen=True)
        guess = await self.detected_source(request, item, None, tuple(sorted(route.first.directions.sources)))
        return Routed(route, is_chosen=True, guess=guess)

    @property
    def routes(self) -> Routes:
        """The ways through the models."""
        return Routes(self.catalog)

    def taken(self, route: Route, call: Call) -> Route:
        """A route of the versions that the traffic gives the call, in use until the call ends."""
        model, first = self.spread(route.model, call), route.first
        call.use(model)
        if first is not None:
            first = self.spread(first, call)
            call.budget.use_first(first)
        return route._replace(model=model, first=first)

    def _chooses(self, request: Any, call: Call) -> bool:
        """Whether the languages of a request choose its model. Raises InvalidRequest."""
        if request.pivot_language and request.model:
            raise InvalidRequest("pivot_language", "must be left out with a model's name, which answers alone")
        if request.model or call.budget.pinned is not None:
            return False
        if request.pivot_language:
            return True
        return bool(request.source_language or request.target_language) and len(self._translating()) > 1

    def _translating(self) -> list[ServedModel]:
        return [model for model in self.catalog.defaults if model.manifest.task == "translation" or model.translation]

    async def detected_source(
        self, request: Any, call: Call, sample: str | None, sources: tuple[str, ...] = ()
    ) -> Guess:
        """The language of the request's text, one of `sources`, which it names from then on."""
        if not is_loaded():  # 40 ms, once
            await self.preparation.convert(call.rpc.caller, load)
        text = sample if sample is not None else text_of(request)
        guess = detected(text, sources or self._sources(request, call))
        request.source_language = guess.language
        return guess

    def _sources(self, request: Any, call: Call) -> tuple[str, ...]:
        """The codes of the languages that the text may be in."""
        target = request.target_language
        if self._chooses(request, call):
            return self.routes.sources_into(target)
        model = call.budget.pinned or self.catalog.find(request.model, "translation", by_prompt=True)
        directions = model.directions
        if not directions.sources:
            problem = f"model {model.name!r} does not say which languages it translates"
            raise Unsupported(
                f"source_language auto: {problem}; export it with --source-language and --target-language"
            )
        own = directions.targets.find(target)
        return tuple(sorted(code for code in directions.sources if code != own))


def text_of(request: Any) -> str:
    """The text of a request in which its language is detected: without tags where it has some."""
    if not request.markup.tags:
        return str(request.text[:MAX_CHARACTERS])
    return untagged(request.text[:_LOOKED_AT])


def untagged(text: str) -> str:
    """A text with blanks for its tags."""
    return _TAG.sub(" ", text)


def joined_words(texts: Iterable[str]) -> str:
    """As much of some texts as is looked at."""
    found = ""
    for text in texts:
        found += f"{text} "
        if len(found) >= MAX_CHARACTERS:
            break
    return found
