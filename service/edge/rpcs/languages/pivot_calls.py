"""Translations by two models, the first into a language between (`PivotCalls`): one call with one deadline, one share
of its tenant's, and the text between in its answer.

The first answer is decoded by the search of the request, a beam or greedy; every other option is of the second one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

from glossa.v1 import glossa_pb2 as pb
from service.edge.calls.call import Call
from service.edge.models.served_model import ServedModel
from service.edge.requests.language_routes import Route
from service.edge.rpcs.languages.routed_calls import RoutedCalls, route_message
from service.edge.rpcs.rewriting import summed
from service.errors import InvalidRequest
from service.request import Finished

# Of decoding options, those of the search.
SEARCH = ("beam_size", "length_penalty", "length_normalization", "patience", "early_stopping", "use_shortlist")


class PivotCalls(RoutedCalls):
    """Calls to two models that translate one after the other. Event-loop thread only."""

    if TYPE_CHECKING:  # of the class that has all RPCs

        async def translated(
            self, model: ServedModel, message: Any, call: Call, *, is_fragment: bool = False
        ) -> pb.TranslateResponse: ...

        def stream(self, model: ServedModel, message: Any, call: Call, build: Any) -> AsyncGenerator[Any, None]: ...

    async def pivoted(
        self, way: Route, model: ServedModel, message: Any, call: Call, *, is_fragment: bool = False
    ) -> pb.TranslateResponse:
        """The response to a request whose text the first model reads as a whole. model: the second one. is_fragment:
        as of `translated`."""
        before, first = await self._between(way, message, call)
        second = _second(message, before.text, way.middle)
        with _of_text_between(way):
            response = await self.translated(model, second, call)
        _add_cost(response, before)
        self._sum(call, first)
        response.route.CopyFrom(route_message(way, before.text))
        return response

    async def stream_pivoted(
        self, way: Route, model: ServedModel, message: Any, call: Call
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        """The messages of a stream: those of the second answer, once the first one is complete."""
        before, first = await self._between(way, message, call)
        second = _second(message, before.text, way.middle)
        responses = self.stream(model, second, call, pb.StreamTranslateResponse)
        with _of_text_between(way):
            async with contextlib.aclosing(responses):
                async for response in responses:
                    if response.HasField("final"):
                        _add_cost(response.final, before)
                        self._sum(call, first)
                        response.final.route.CopyFrom(route_message(way, before.text))
                    yield response

    async def _between(self, way: Route, message: Any, call: Call) -> tuple[pb.TranslateResponse, Finished | None]:
        """The first model's answer."""
        check_pivot(message)
        assert way.first is not None
        request = pb.TranslateRequest(
            text=message.text, source_language=message.source_language, target_language=way.middle
        )
        for name in SEARCH:
            if message.options.DESCRIPTOR.fields_by_name[name].has_presence:
                if message.options.HasField(name):
                    setattr(request.options, name, getattr(message.options, name))
            elif value := getattr(message.options, name):
                setattr(request.options, name, value)
        response = await self.translated(way.first, request, call)
        if not response.text.strip():
            problem = f"model {way.first.name!r} has no words for it, and so nothing for {way.model.name!r}"
            raise InvalidRequest("text", f"{problem}; name another pivot_language, or a model")
        return response, call.record.finished

    @staticmethod
    def _sum(call: Call, first: Finished | None) -> None:
        if first is not None and call.record.finished is not None:
            call.record.finish(summed(first, call.record.finished))


@contextlib.contextmanager
def _of_text_between(way: Route) -> Iterator[None]:
    """Tells that an error about a text is about the one between two models."""
    try:
        yield
    except InvalidRequest as error:
        if error.field != "text":
            raise
        assert way.first is not None
        problem = f"its translation into {way.middle} by model {way.first.name!r} {error.problem}"
        raise InvalidRequest("text", problem) from error


def check_pivot(message: Any) -> None:
    """Refuses what two models cannot do together. Raises InvalidRequest."""
    for field in ("markup", "glossary"):
        if message.HasField(field):
            raise InvalidRequest(field, f"must be left out of a translation by way of another language; {_FIX}")
    if message.include_confidence:
        raise InvalidRequest("include_confidence", f"must be false in a translation by way of another language; {_FIX}")
    if message.options.alignment not in (pb.ALIGNMENT_KIND_UNSPECIFIED, pb.ALIGNMENT_KIND_NONE):
        raise InvalidRequest("options.alignment", f"must be none in a translation by way of another language; {_FIX}")


_FIX = "translate in two calls"


def _second(message: Any, text: str, middle: str) -> Any:
    """The second model's request."""
    request = type(message)()
    request.CopyFrom(message)
    request.text, request.source_language = text, middle
    return request


def _add_cost(response: Any, before: pb.TranslateResponse) -> None:
    """Adds the first answer's cost. The prompt is the client's text alone."""
    response.usage.prompt_tokens = before.usage.prompt_tokens
    response.usage.generated_tokens += before.usage.generated_tokens
    own, other = response.timings, before.timings
    for total, part in ((own.queue, other.queue), (own.prefill, other.prefill)):
        total.FromTimedelta(total.ToTimedelta() + part.ToTimedelta())
    for total in (own.first_token, own.total):
        total.FromTimedelta(total.ToTimedelta() + other.total.ToTimedelta())
