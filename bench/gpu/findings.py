"""What a part of `python -m bench gpu-check` finds, as JSON and as rows of a Markdown table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.device import is_fake, not_emulated
from bench.measure import Verdict, verdict_row

HEAD = "| measure | bar | figure | met |\n|---|---|---|---|"
NO_CLOCK = "means nothing on the fake CUDA"
NO_CUDNN = "cuDNN is unavailable"  # which is not faked


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a part is given.

    models: the folder of `bench.gpu.models`. bundle: a trained one with fp16 graphs, which is checked beside them.
    is_smoke: whether a part only shows that it works, in seconds.
    """

    models: Path
    bundle: Path | None = None
    is_smoke: bool = False

    def pick(self, smoke: Any, full: Any) -> Any:
        """The value for a smoke run, or for a full one."""
        return smoke if self.is_smoke else full


@dataclass
class Findings:
    """Figures of one part by name, and verdicts. timed: the names of those that a clock gave; unjudged: of verdicts
    that mean nothing here, because the fake CUDA does not compute something."""

    figures: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    timed: set[str] = field(default_factory=set)
    unjudged: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def of(self, model: str) -> Iterator[None]:
        """Around what is found of one model: it may fail, and others are still checked."""
        before, told = not_emulated(), len(self.verdicts)
        problem = ""
        try:
            yield
        except Exception as error:  # whatever the device's libraries raise
            problem = f"{type(error).__name__}: {error}"
            self.tell(f"{model}: error", problem.replace("|", "/").replace("\n", " ")[:500])
        self.none(f"{model}: errors", int(bool(problem)))
        if not_emulated() != before or (is_fake() and NO_CUDNN in problem):
            self.unjudged.update(verdict.measure for verdict in self.verdicts[told:])

    def tell(self, measure: str, figure: Any) -> None:
        """A figure without a bar, which no clock gave."""
        self.figures[measure] = figure

    def time(self, measure: str, figure: Any) -> None:
        """A figure that a clock gave."""
        self.figures[measure] = str(figure)
        self.timed.add(measure)

    def none(self, measure: str, found: int, note: str = "") -> None:
        """A number that must be 0."""
        self.verdicts.append(Verdict(measure, found, 0, "", is_limit=True, note=note))

    def most(self, measure: str, figure: float, bar: float, unit: str = "") -> None:
        """A figure that must not exceed a bar."""
        self.verdicts.append(Verdict(measure, figure, bar, unit, is_limit=True))

    def least(self, measure: str, figure: float, bar: float, unit: str = "") -> None:
        """A figure that must reach a bar."""
        self.verdicts.append(Verdict(measure, figure, bar, unit))

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON has them."""
        void = self.unjudged | (self.timed if is_fake() else set())
        verdicts = [{**asdict(one), "met": one.met, "judged": one.measure not in void} for one in self.verdicts]
        return {"figures": self.figures, "verdicts": verdicts, "timed": sorted(self.timed)}


def has_failed(part: Mapping[str, Any]) -> bool:
    """Whether a part of a report ended with an error, or missed a bar that means something here."""
    return bool(part.get("error")) or any(one["judged"] and not one["met"] for one in part.get("verdicts", []))


def table(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The report's parts as Markdown, each with its own table."""
    return "\n\n".join(_section(name, part) for name, part in parts.items())


def _section(name: str, part: Mapping[str, Any]) -> str:
    lines = [f"### {name}: {part['title']}", "", f"{part['seconds']:.0f} s", ""]
    if part["not_emulated"]:
        kernels = ", ".join(f"`{kernel}`" for kernel in part["not_emulated"])
        lines += [f"The fake CUDA does not emulate these kernels: {kernels}.", ""]
    if part.get("error"):
        lines += [f"**Failed**: {part['error']}", ""]
    if part.get("figures") or part.get("verdicts"):
        lines.append(HEAD)
    for measure, figure in part.get("figures", {}).items():
        is_void = part["is_fake"] and measure in part["timed"]
        lines.append(f"| {measure} | | {NO_CLOCK if is_void else figure} | |")
    for verdict in part.get("verdicts", []):
        row = verdict_row(verdict)
        lines.append(row if verdict["judged"] else f"{row.rpartition(' | ')[0]} | not judged |")
    return "\n".join(lines).rstrip()
