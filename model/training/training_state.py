"""Resumable training states: `states/step-00000500/`, each written atomically, of which the newest few are kept.

A state holds everything the next step depends on: weights, optimiser moments, random generators, the position in the
data, running sums. A run that is killed and resumed therefore ends in bit-identical weights. If the newest state is
damaged, the previous one is used, with a warning. `states/run.json` identifies the run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

from model.checkpoints.atomic_write import Content, DamagedError, Disk, size_of, verify, write_directory, write_file
from model.checkpoints.checkpoint import (
    CheckpointError,
    cannot_save,
    load_weights,
    map_tensors,
    tensors_in_pieces,
    to_json,
    weights_of,
)
from model.config import TrainConfig
from model.fine_tuning import FineTuning

DELETED = ".deleted"  # ends the hidden name of a state that is being deleted
WEIGHTS, OPTIMISER, PROGRESS = "model.safetensors", "optimiser.safetensors", "progress.json"


class TrainError(Exception):
    """A run cannot start or resume as requested."""


class DamagedStateWarning(UserWarning):
    """A state is unusable, and an older one is used instead."""


@dataclass
class Progress:
    """The progress of a run, without tensors. JSON preserves its floats exactly."""

    step: int = 0  # completed optimiser steps
    epoch: int = 0
    position: int = 0  # consumed batches of this epoch
    tokens: int = 0  # target tokens seen, padding not counted
    flops: int = 0  # floating-point operations of the steps: model.training.flops
    elapsed_s: float = 0.0
    loss_sum: float = 0.0  # since the last row of the history, in nats, without smoothing
    loss_tokens: int = 0
    validated: int = 0  # the last validated step
    best_value: float | None = None  # of the stop metric, with early stopping
    best_step: int = 0  # whose state has it
    stale: int = 0  # validations since then
    seeds_batches: bool = False  # dropout draws from a seed of each batch: several ranks have trained (`ranks.Ranks`)
    history: list[dict[str, float]] = field(default_factory=list)  # one row every log_every_steps and per validation


def claim(out: Path, identity: dict[str, Any], *, resume: bool) -> bool:
    """Makes `out` the directory of this run, or checks that it already is; returns whether it is new. TrainError names
    the difference."""
    marker = out / "states" / "run.json"
    if marker.exists():
        if not resume:
            raise TrainError(f"{out} holds another training run; resume it with --resume, or choose another directory")
        check_same_run(out, identity)
        return False
    if _is_taken(out, marker.parent):
        raise TrainError(f"{out} holds other files; choose another directory")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        write_file(marker, to_json({**identity, "id": uuid4().hex}))
    except OSError as error:
        raise TrainError(f"{out}: cannot be written: {error.strerror}; choose another directory") from error
    return True


def _is_taken(out: Path, states: Path) -> bool:
    """Whether a directory without a marker holds anything but an empty directory for states."""
    if not out.is_dir():
        return out.exists()
    return any(path != states for path in out.iterdir()) or bool(list_states(states))


def run_id(out: Path) -> str:
    """Distinguishes the run in `out` from every other, also from one of the same identity; "" if there is none."""
    marker = out / "states" / "run.json"
    return hashlib.sha256(marker.read_bytes()).hexdigest()[:16] if marker.is_file() else ""


def unclaim(out: Path) -> None:
    """Removes what a run that could not start has written; `out` too, if nothing else is in it."""
    for name in ("states/run.json", "tokenizer.json"):
        (out / name).unlink(missing_ok=True)
    for directory in (out / "states", out):
        if not any(directory.iterdir()):
            directory.rmdir()


def check_same_run(out: Path, identity: dict[str, Any]) -> None:
    """Raises TrainError unless `out` holds a run of this identity, finished or not; it names the difference."""
    marker = out / "states" / "run.json"
    if not marker.exists():
        raise TrainError(f"{out} holds a checkpoint without {marker}, so of another run; choose another directory")
    try:
        known = json.loads(marker.read_bytes())
        difference = _difference(known, json.loads(to_json(identity)))  # tuples become lists in JSON
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainError(f"{marker}: cannot be read: {error!r}; train into another directory") from error
    if difference:
        raise TrainError(f"{marker.parent.parent}: was started with {difference} or train into another directory")


def _difference(known: dict[str, Any], identity: dict[str, Any]) -> str:
    """The values in which two identities differ, and how to resume; "" if they are the same. Settings of
    training and fine-tuning that one lacks, because an earlier version had none, are the defaults."""
    defaults = json.loads(to_json({"train": TrainConfig(steps=1).to_json(), "fine_tuning": FineTuning().to_json()}))
    known, identity = (
        {**run, **{part: {**default, **run.get(part, {})} for part, default in defaults.items()}}
        for run in (known, identity)
    )
    for part in ("model", "train", "fine_tuning"):
        for name in identity[part] | known[part]:
            before, now = known[part].get(name), identity[part].get(name)
            if before != now:
                return f"{name}={before!r} in its {part} configuration, got {now!r}; resume with the same one"
    if known.get("new_head") != identity.get("new_head"):
        given = "a new head, got none" if known.get("new_head") else "the head of its base, got a new one"
        return f"{given} (--head); resume with the same one"
    for part in ("data", "validation", "base", "tokenizer"):
        before, now = known.get(part), identity.get(part)
        if before != now:
            return f"other {part}: SHA-256 {before}, got {now}; resume with the same files"
    return ""


def save_state(
    states: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, disk: Disk | None = None
) -> Path:
    """Writes `states/step-…` atomically. Raises CheckpointError on failure, with all earlier states intact."""
    path = state_of(states, progress.step)
    files: dict[str, Content] = {
        WEIGHTS: tensors_in_pieces(weights_of(model)),
        OPTIMISER: tensors_in_pieces(_optimiser_tensors(model, optimiser)),
        PROGRESS: to_json(asdict(progress)),
    }
    try:
        states.mkdir(parents=True, exist_ok=True)
        if path.exists():  # the same step again, after a damaged state was skipped
            shutil.rmtree(path)
        write_directory(path, files, disk)
    except OSError as error:
        raise CheckpointError(cannot_save(path, error, sum(map(size_of, files.values())))) from error
    return path


def load_newest(
    states: Path, model: nn.Module, optimiser: torch.optim.Optimizer, *, maps: bool = False
) -> Progress | None:
    """Restores the newest usable state into model, optimiser and torch's generators; None if there is no state.

    maps: moments of a model in main memory are only mapped from their file, to be read and not to be changed.
    """
    damaged: list[str] = []
    for path in reversed(list_states(states)):
        try:
            verify(path, (WEIGHTS, OPTIMISER, PROGRESS))
        except DamagedError as error:
            warnings.warn(
                f"DAMAGED TRAINING STATE {path.name}: {error}; going back to the state before it",
                DamagedStateWarning,
                stacklevel=2,
            )
            damaged.append(path.name)
            continue
        load_weights(model, map_tensors(path / WEIGHTS), path)
        _restore_optimiser(model, optimiser, map_tensors(path / OPTIMISER), copies=not maps)
        values = json.loads((path / PROGRESS).read_bytes())
        return Progress(**{"validated": values["step"], **values})  # states without it were saved after validation
    if damaged:
        raise CheckpointError(
            f"{states}: every state is damaged ({', '.join(damaged)}); start again in a new directory"
        )
    return None


def state_of(states: Path, step: int) -> Path:
    """The directory of the state after a step."""
    return states / f"step-{step:08d}"


def list_states(states: Path) -> list[Path]:
    """Complete states, oldest first."""
    return sorted(path for path in states.glob("step-*") if path.is_dir())


def prune(states: Path, *, keep: int, every: int, best_step: int = 0) -> None:
    """Deletes all but the newest `keep` states, not counting those of an interruption, and the state of best_step.
    Raises OSError for one that cannot be deleted; the next call tries it again.

    A state whose step is not a multiple of `every` is kept only while it is the newest: the states averaged at the end
    must not depend on the time of an interruption.
    """
    for left in states.glob(f".step-*{DELETED}"):
        shutil.rmtree(left)
    paths = list_states(states)
    scheduled = [path for path in paths if path == paths[-1] or int(path.name.removeprefix("step-")) % every == 0]
    newest_is_extra = int(paths[-1].name.removeprefix("step-")) % every != 0
    kept = scheduled[-keep - newest_is_extra :]
    for path in paths:
        if path not in kept and path != state_of(states, best_step):
            hidden = path.with_name(f".{path.name}{DELETED}")
            path.rename(hidden)  # a state is whole or not there
            shutil.rmtree(hidden)


def average_states(states: Path, last: int, model: nn.Module) -> int:
    """Loads the mean weights of the last `last` states into the model; returns their number. Skips damaged states.

    Vaswani et al. 2017, section 6.1. Summed in float64, so that the order of states does not matter.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    for path in list_states(states)[-last:]:
        try:
            verify(path, (WEIGHTS,))
            tensors = map_tensors(path / WEIGHTS)
        except DamagedError as error:
            warnings.warn(
                f"DAMAGED TRAINING STATE, left out of the average: {error}", DamagedStateWarning, stacklevel=2
            )
            continue
        for name, tensor in tensors.items():
            sums[name] = sums[name] + tensor if name in sums else tensor.double()
        count += 1
    if count:
        load_weights(model, {name: (total / count).float() for name, total in sums.items()}, states)
    return count


def _optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {"generator.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["generator.cuda"] = torch.cuda.get_rng_state()
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    return tensors


def _restore_optimiser(
    model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], *, copies: bool
) -> None:
    torch.set_rng_state(tensors["generator.cpu"])
    if torch.cuda.is_available() and "generator.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["generator.cuda"])
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        kind, slash, name = key.partition("/")
        if slash:
            states.setdefault(name, {})[kind] = tensor.to(parameters[name].device, copy=copies)
    for name, state in states.items():
        optimiser.state[parameters[name]] = state


def write_run_file(path: Path, data: bytes, disk: Disk | None) -> None:
    """Writes a file of a run beside its states. Raises CheckpointError."""
    try:
        write_file(path, data, disk)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be saved: {error.strerror}") from error
