"""The models of a server by name and by task. Checks of requests are in `request_builder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from export.manifest import Task
from service.edge.prompt_encoder import shorten
from service.edge.request_limits import TextLimits
from service.edge.served_model import ServedModel
from service.errors import InvalidRequest, ModelNotFound, Unsupported

SERVICES: Mapping[Task, tuple[str, ...]] = {
    "translation": ("TranslationService", "ScoringService", "EncodingService"),
    "generation": ("GenerationService", "ScoringService"),
    "encoding": ("EncodingService",),
}
"""The services that accept models of a task, the one made for it first."""

DECODER_TASKS: tuple[Task, ...] = ("translation", "generation")
ENCODER_TASKS: tuple[Task, ...] = ("translation", "encoding")


class Catalog:
    """The models of one server by name."""

    def __init__(self, models: Sequence[ServedModel], limits: TextLimits | None = None) -> None:
        self.limits = limits or TextLimits()
        self._models = {model.name: model for model in sorted(models, key=lambda model: model.name)}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str, *tasks: Task, can: Callable[[ServedModel], bool] = lambda _: True) -> ServedModel:
        """The model of that name; for an empty name the only model of these tasks, if several the only one that `can`.

        Raises ModelNotFound; Unsupported if the model has another task or no model has one of these; InvalidRequest if
        the name is empty and several models fit.
        """
        if not name:
            return self._only(tasks, can)
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(shorten(name, 64), list(self._models))
        if tasks and model.manifest.task not in tasks:
            raise Unsupported(
                f"model {name!r} serves {model.manifest.task}, not {' or '.join(tasks)}; "
                f"call {SERVICES[model.manifest.task][0]}, or name another model"
            )
        return model

    def _only(self, tasks: tuple[Task, ...], can: Callable[[ServedModel], bool]) -> ServedModel:
        fitting = [model for model in self._models.values() if not tasks or model.manifest.task in tasks]
        if not fitting:
            raise Unsupported(f"no model for {' or '.join(tasks)} is served here; models: {', '.join(self._models)}")
        fitting = [model for model in fitting if can(model)] or fitting
        if len(fitting) > 1:
            names = ", ".join(model.name for model in fitting)
            raise InvalidRequest("model", f"must be named when several fit; one of: {names}")
        return fitting[0]
