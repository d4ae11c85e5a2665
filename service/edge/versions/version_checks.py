"""Whether a new version may take the place of one that serves: its task, the memory of both, its quality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from export.bundle.manifest import Manifest
from model.prompts.template_files import TRANSLATION_TEMPLATE
from service.edge.models.served_model import ServedModel
from service.edge.requests.request_limits import TextLimits
from service.edge.versions.evaluation import EvaluationSet, chrf_of, together
from service.edge.versions.memory_plan import advice, predict_open
from service.errors import NoRoomForVersion, Unsupported, VersionRefused
from service.settings.config import ServerSettings

MB = 1e6


class Scores(NamedTuple):
    """chrF of a new version and of the default one, on so many examples."""

    examples: int
    chrf: float
    default_chrf: float


def check_fit(
    settings: ServerSettings,
    default: ServedModel,
    models: Sequence[ServedModel],
    manifest: Manifest,
    others: Sequence[Manifest],
    limit: int | None,
) -> None:
    """Raises Unsupported for a bundle that does not do what the default one does, NoRoomForVersion if memory may not be
    enough.

    default: the version that serves. models: all that are open. others: bundles that are being opened, too. limit:
    bytes of the server; None: there is none.
    """
    if manifest.task != default.manifest.task:
        raise Unsupported(f"model {default.name} serves {default.manifest.task}, and the bundle {manifest.task}")
    if default.translation is not None and TRANSLATION_TEMPLATE not in manifest.files:
        fix = "import its model with --translate-as"
        raise Unsupported(f"model {default.name} translates by its prompts, and the bundle has none; {fix}")
    if limit is None:
        return
    prediction = predict_open(settings, models, [*others, manifest], on_device=default.choice.on_device)
    if prediction.total > limit:
        raise NoRoomForVersion(
            f"model {default.name}: all {len(models) + len(others) + 1} open versions may come to need "
            f"{prediction.total / MB:,.0f} MB together, and the server has {limit / MB:,.0f} MB; fix: raise the limit, "
            f"stop a version, or lower {advice(prediction)}",
            predicted=prediction.total,
            limit=limit,
        )


async def compare(model: ServedModel, default: ServedModel, test_set: EvaluationSet, limits: TextLimits) -> Scores:
    """Raises VersionRefused if a version is worse than the default one. limits: those of the server."""
    check_texts(model)
    default.users.enter()  # not to be closed meanwhile
    try:
        mine, theirs = await together(chrf_of(one, test_set, limits) for one in (model, default))
    finally:
        default.users.leave()
    if mine < theirs - test_set.max_loss:
        raise VersionRefused(
            f"version {model.version} of model {model.name} is worse than the default one: chrF {mine:.2f} against "
            f"{theirs:.2f} on {len(test_set.examples)} examples, and it may lose at most {test_set.max_loss:g}"
        )
    return Scores(len(test_set.examples), mine, theirs)


def check_texts(model: ServedModel) -> None:
    """Raises Unsupported for a model whose answers to a test set are no texts."""
    if not model.manifest.limits.max_target_len:
        raise Unsupported(f"model {model.name} gives no texts to compare; leave the test set out")
