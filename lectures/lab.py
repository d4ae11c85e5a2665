"""Trains the models of the experiments with the product's own trainer, two concurrently, and stores them for reuse.

The digest of everything that determines a training's result names its directory: a stored result is not computed again,
and an interrupted training resumes. This module times nothing; claims do, in this process, while nothing else runs.
"""

from __future__ import annotations

import csv
import hashlib
import json
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from model.checkpoints.checkpoint import Checkpoint, load_checkpoint
from model.config import ModelConfig, TrainConfig
from model.training.data.examples import Examples
from model.training.progress import Display
from model.training.train import TrainError, train

History = list[dict[str, float]]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model, its training configuration and its data. validation: by default held out of the data."""

    model: ModelConfig
    train: TrainConfig
    data: Examples
    validation: Examples | None = None

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of a hash of everything that determines the result."""
        parts = [self.model.to_json(), self.train.to_json(), self.data.digest]
        if self.validation is not None:
            parts.append(self.validation.digest)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training. history: rows of metrics.csv without their empty cells. checkpoint: None after a loss
    that was not finite."""

    checkpoint: Checkpoint | None
    history: History

    @property
    def model_checkpoint(self) -> Checkpoint:
        assert self.checkpoint is not None, "this training diverged"
        return self.checkpoint

    def curve(self, column: str) -> list[tuple[float, float]]:
        """(step, value) of every row that has the column."""
        return [(row["step"], row[column]) for row in self.history if column in row]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """directory: of the stored trainings. is_fast: sizes of a smoke test. workers: the number of concurrent trainings,
    in processes of their own if there are several."""

    directory: Path
    is_fast: bool = False
    workers: int = 2
    _pools: list[ProcessPoolExecutor] = field(default_factory=list)

    def pick(self, full: Value, fast: Value) -> Value:
        return fast if self.is_fast else full

    def train(self, trainings: Mapping[str, Training]) -> dict[str, Trained]:
        """The results of all trainings by name; `workers` run concurrently, on one thread each."""
        paths = {name: self.directory / training.digest for name, training in trainings.items()}
        if self.workers == 1:
            for name, training in trainings.items():
                _train(training, paths[name])
        else:
            pool = self._pool()
            for job in [pool.submit(_train, training, paths[name]) for name, training in trainings.items()]:
                job.result()
        return {name: _read(path) for name, path in paths.items()}

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()
        self._pools.clear()

    def _pool(self) -> ProcessPoolExecutor:
        if not self._pools:
            context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
            self._pools.append(ProcessPoolExecutor(self.workers, context, torch.set_num_threads, (1,)))
        return self._pools[0]


DIVERGED = "diverged"


def _train(training: Training, path: Path) -> None:
    if (path / DIVERGED).exists():
        return
    try:
        train(
            training.model,
            training.train,
            data=training.data,
            validation=training.validation,
            out=path,
            resume=True,
            display=Display(Console(quiet=True)),  # concurrent trainings share one terminal
        )
    except TrainError as error:
        if "the loss is" not in str(error):
            raise
        (path / DIVERGED).write_text(str(error), encoding="utf-8")


def _read(path: Path) -> Trained:
    checkpoint = None if (path / DIVERGED).exists() else load_checkpoint(path)
    history: History = []
    if (path / "metrics.csv").exists():
        with (path / "metrics.csv").open(encoding="utf-8") as file:
            history = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    return Trained(checkpoint=checkpoint, history=history)
