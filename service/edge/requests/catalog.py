"""The models of a server by name and by task. Checks of requests are in `request_builder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from export.bundle.manifest import Task
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import shorten
from service.edge.requests.request_limits import TextLimits
from service.edge.requests.traffic import NO_TRAFFIC, Key, Traffic
from service.errors import InvalidRequest, ModelNotFound, Unsupported

SERVICES: Mapping[Task, tuple[str, ...]] = {
    "translation": ("TranslationService", "ScoringService", "EncodingService"),
    "generation": ("GenerationService", "ScoringService"),
    "encoding": ("EncodingService",),
}
"""The services that accept models of a task, the one made for it first."""


def services_of(model: ServedModel) -> tuple[str, ...]:
    """The services that accept a model."""
    return (*SERVICES[model.manifest.task], *(("TranslationService",) if model.translation else ()))


DECODER_TASKS: tuple[Task, ...] = ("translation", "generation")
ENCODER_TASKS: tuple[Task, ...] = ("translation", "encoding")


class Catalog:
    """The models of one server: versions by name, one of each the default. Each change is one step on the event loop;
    `defaults` may be read from any thread."""

    def __init__(self, models: Sequence[ServedModel] = (), limits: TextLimits | None = None) -> None:
        self.limits, self._limits_of = limits or TextLimits(), dict[int, TextLimits]()  # by tokens of the context
        self.defaults: tuple[ServedModel, ...] = ()  # sorted by name, replaced as a whole
        self._models: dict[str, ServedModel] = {}  # by NAME, the defaults, and by NAME@VERSION
        self._traffic: dict[str, Traffic] = {}  # by name, of models whose requests do not all go to the default
        self.on_traffic_end: Callable[[str], object] = lambda _: None  # another version of a name became the default
        for model in models:
            self.add(model)

    def __iter__(self) -> Iterator[ServedModel]:
        """All versions, sorted by name, of each name the default first."""
        for default in self.defaults:
            yield default
            yield from sorted(
                (model for model in self.versions(default.name) if model is not default),
                key=lambda model: model.version,
            )

    def limits_of(self, model: ServedModel) -> TextLimits:
        """The limits of the texts of a request to a model."""
        tokens = model.max_prompt_tokens
        if tokens not in self._limits_of:
            self._limits_of[tokens] = self.limits.for_context(tokens)
        return self._limits_of[tokens]

    def versions(self, name: str) -> list[ServedModel]:
        """All versions of a model."""
        return [model for key, model in self._models.items() if "@" in key and model.name == name]

    def default(self, name: str) -> ServedModel:
        """The default version of a model. Raises ModelNotFound."""
        if name not in self._models or "@" in name:
            raise ModelNotFound(shorten(name, 128), [model.name for model in self.defaults])
        return self._models[name]

    def version(self, name: str, version: str) -> ServedModel:
        """A version of a model. Raises ModelNotFound."""
        return self.find(f"{self.default(name).name}@{version}")

    def is_default(self, model: ServedModel) -> bool:
        """Whether requests that name no version get this one."""
        return self._models.get(model.name) is model

    def add(self, model: ServedModel, *, is_default: bool = True) -> None:
        """Adds a version. The first one of a name is its default."""
        assert f"{model.name}@{model.version}" not in self._models, model.version
        self._models[f"{model.name}@{model.version}"] = model
        if is_default or model.name not in self._models:
            self.set_default(model)

    def set_default(self, model: ServedModel) -> None:
        """Requests that name no version get this one from now on, all of them."""
        assert self._models[f"{model.name}@{model.version}"] is model
        has_traffic = self._traffic.pop(model.name, None) is not None
        self._models[model.name] = model
        names = sorted(key for key in self._models if "@" not in key)
        self.defaults = tuple(self._models[name] for name in names)
        if has_traffic:
            self.on_traffic_end(model.name)

    def remove(self, model: ServedModel) -> None:
        """No more requests get this version, which is not the default and has no part in the traffic."""
        assert not self.is_default(model), model.version
        assert model.version not in self.traffic(model.name).versions, model.version
        del self._models[f"{model.name}@{model.version}"]

    def traffic(self, name: str) -> Traffic:
        """How the requests for a model are spread that name no version."""
        return self._traffic.get(name, NO_TRAFFIC)

    @property
    def has_shadows(self) -> bool:
        """Whether requests to any model run on a shadow."""
        return any(traffic.shadow for traffic in self._traffic.values())

    def set_traffic(self, name: str, traffic: Traffic) -> None:
        """Spreads them so from now on. traffic: with versions that are here."""
        assert all(f"{name}@{version}" in self._models for version in traffic.versions), traffic
        if traffic.versions:
            self._traffic[name] = traffic
        else:
            self._traffic.pop(name, None)

    def spread(self, model: ServedModel, key: Key) -> ServedModel:
        """The version that a request for a default version gets; the default one while no engine of another runs."""
        traffic = self._traffic.get(model.name, NO_TRAFFIC)
        if not traffic.weights:
            return model
        found = self._models[f"{model.name}@{traffic.version(model.name, key)}"]
        return found if found.pool.is_ready else model

    def find(
        self,
        name: str,
        *tasks: Task,
        can: Callable[[ServedModel], bool] = lambda _: True,
        by_prompt: bool = False,
    ) -> ServedModel:
        """The model of that name, or of NAME@VERSION; for an empty name the only model of these tasks, if several the
        only one that `can`. by_prompt: or a model that translates by its prompts.

        Raises ModelNotFound; Unsupported if the model has another task or no model has one of these; InvalidRequest if
        the name is empty and several models fit.
        """
        if not name:
            return self._only(tasks, can, by_prompt=by_prompt)
        model = self._models.get(name)
        if model is None:
            known = [one.name for one in self.defaults]
            if name.partition("@")[0] in known:
                known += [f"{one.name}@{one.version}" for one in self.versions(name.partition("@")[0])]
            raise ModelNotFound(shorten(name, 128), known)
        if not _is_of(model, tasks, by_prompt=by_prompt):
            fix = f"call {SERVICES[model.manifest.task][0]}, or name another model"
            if by_prompt and model.manifest.task == "generation":
                fix += ", or import this one with --translate-as, which tells how it is asked to translate"
            raise Unsupported(f"model {name!r} serves {model.manifest.task}, not {' or '.join(tasks)}; {fix}")
        return model

    def _only(self, tasks: tuple[Task, ...], can: Callable[[ServedModel], bool], *, by_prompt: bool) -> ServedModel:
        fitting = [model for model in self.defaults if _is_of(model, tasks, by_prompt=by_prompt)]
        if not fitting:
            names = ", ".join(model.name for model in self.defaults)
            raise Unsupported(f"no model for {' or '.join(tasks)} is served here; models: {names}")
        fitting = [model for model in fitting if can(model)] or fitting
        if len(fitting) > 1:
            names = ", ".join(model.name for model in fitting)
            raise InvalidRequest("model", f"must be named when several fit; one of: {names}")
        return fitting[0]


def _is_of(model: ServedModel, tasks: tuple[Task, ...], *, by_prompt: bool) -> bool:
    return not tasks or model.manifest.task in tasks or (by_prompt and model.translation is not None)
