"""The progress display of a training run: a bar on a terminal, plain lines elsewhere. Independent of training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of one log step."""

    step: int
    share: float  # of the whole run, 0..1
    loss: float  # nats per target token, without smoothing
    learning_rate: float
    tokens_per_s: float  # target tokens, padding not counted
    remaining_s: float

    def line(self) -> str:
        return (
            f"step {self.step}  {self.share:.0%}  loss {self.loss:.3f}  lr {self.learning_rate:.1e}  "
            f"{self.tokens_per_s:,.0f} tokens/s  {clock(self.remaining_s)} left"
        )


class Display:
    """One line per message and per update."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def message(self, text: str) -> None:
        """Reports a single event: data read, validation loss, a state saved."""
        print(text, file=self._stream, flush=True)

    def update(self, figures: StepMetrics) -> None:
        """Reports a log step."""
        self.message(figures.line())

    def close(self) -> None:
        """Restores the terminal; may be called twice."""


class BarDisplay(Display):
    """A `rich` progress bar; messages scroll above it."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
        self._bar = Bar(*columns, console=console or Console(stderr=True), transient=True)
        self._task = self._bar.add_task("starting", total=1.0)
        self._bar.start()

    def message(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def update(self, figures: StepMetrics) -> None:
        self._bar.update(self._task, completed=figures.share, description=figures.line())

    def close(self) -> None:
        self._bar.stop()


def display_for(stream: TextIO | None = None) -> Display:
    """A bar if the stream, by default stderr, is a terminal; plain lines otherwise."""
    console = Console(file=stream or sys.stderr)
    return BarDisplay(console) if console.is_terminal else Display(stream)


def clock(seconds: float) -> str:
    """75 → "1:15", 3700 → "1:01:40"."""
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
