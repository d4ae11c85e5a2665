"""The progress display of a training run: a bar on a terminal, plain lines elsewhere. Independent of training."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


class Display:
    """A `rich` progress bar on a terminal, above which messages scroll; elsewhere a line per message and update."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        """console: stderr by default. quiet: show nothing, as all but one of several processes."""
        self._console = console or Console(stderr=True, quiet=quiet)
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
        self._bar = Bar(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("starting", total=1.0)
        self._bar.start()

    def message(self, text: str) -> None:
        """Reports a single event: data read, validation loss, a state saved."""
        self._console.out(text, highlight=False)

    def update(self, share: float, line: str) -> None:
        """Reports a log step. share: of the whole run, 0..1."""
        if self._bar.disable:
            self.message(line)
        self._bar.update(self._task, completed=share, description=line)

    def close(self) -> None:
        """Restores the terminal; may be called twice."""
        self._bar.stop()


def clock(seconds: float) -> str:
    """75 → "1:15", 3700 → "1:01:40"."""
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def si(value: float) -> str:
    """A number of three figures and the prefix of its unit: 1234567 → "1.23 M", 950 → "950 "."""
    value = float(f"{value:.3g}")
    power = min(max(0, (len(f"{value:.0f}") - 1) // 3), len(PREFIXES) - 1)
    scaled = value / 1000**power
    decimals = max(0, 3 - len(f"{int(scaled)}")) if power else 0
    return f"{scaled:.{decimals}f} {PREFIXES[power]}"
