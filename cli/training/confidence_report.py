"""How much the confidence of answers is worth on a test set: calibration, errors among the least certain words, and the
quality of the answers that remain when the least certain ones are dropped.

Words are right or wrong by `export.word_errors`, and a sentence is wrong if half of its words or more are. Only `draw`
and its check import matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cli.terminal import UsageError
from export.confidence_fit import expected_calibration_error, least_certain_errors, ranking
from export.word_errors import right_words
from glossa.client.types import Confidence

Score = Callable[[Sequence[str], Sequence[str]], float]  # of answers and references
COVERAGES = (1.0, 0.9, 0.8)  # of the printed figures
CURVE = tuple(part / 20 for part in range(20, 1, -1))  # coverages of a picture
HALF = 0.5  # a sentence is wrong if no larger share of its words is right
DIGITS = 4


class Judged(NamedTuple):
    """An answer with its confidence, its reference, and for each word whether it is right."""

    text: str
    confidence: Confidence
    reference: str
    right: tuple[bool, ...]

    @property
    def share(self) -> float:
        """Of words that are right; 0 without words."""
        return float(np.mean(self.right)) if self.right else 0.0


def judged(answers: Sequence[tuple[str, Confidence]], references: Sequence[str]) -> list[Judged]:
    """Answers compared with their references."""
    return [
        Judged(text, confidence, reference, tuple(right_words(text, reference)))
        for (text, confidence), reference in zip(answers, references, strict=True)
    ]


def figures(answers: Sequence[Judged], scores: dict[str, Score]) -> dict[str, float]:
    """What `glossa eval --confidence` prints. scores: corpus scores by name. Raises UsageError if no answer has
    words."""
    sure = [word.confidence for answer in answers for word in answer.confidence.words]
    right = [one for answer in answers for one in answer.right]
    if not sure:
        raise UsageError("no answer has a word; fix: train the model further, or evaluate other text")
    sentences, shares = [answer.confidence.sentence for answer in answers], [answer.share for answer in answers]
    parts = {
        "words": least_certain_errors(sure, right),
        "sentences": least_certain_errors(sentences, [share > HALF for share in shares]),
    }
    found = {
        "words": len(sure),
        "ECE of words": expected_calibration_error(sure, right),
        "ECE of sentences": expected_calibration_error(sentences, shares),
        "AUC of words": ranking(sure, right),
    }
    for name, part in parts.items():
        found[f"wrong {name}"] = part.average_rate
        found[f"wrong {name} in the least certain tenth"] = part.rate
        found[f"least certain tenth over average, {name}"] = part.lift
    order = by_confidence(answers)
    for coverage in COVERAGES:
        for name, score in scores.items():
            found[f"{name} of the most certain {coverage:.0%}"] = quality(order, coverage, score)
    return {name: round(value, DIGITS) for name, value in found.items()}


def by_confidence(answers: Sequence[Judged]) -> list[Judged]:
    """The answers, most certain first."""
    return sorted(answers, key=lambda answer: -answer.confidence.sentence)


def quality(order: Sequence[Judged], coverage: float, score: Score) -> float:
    """The score of the first answers. coverage: share of answers that are kept."""
    kept = order[: max(1, round(coverage * len(order)))]
    return score([answer.text for answer in kept], [answer.reference for answer in kept])


def check_curve(file: Path) -> None:
    """Raises UsageError if `draw` could not write there. Called before anything is translated."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise UsageError("--curve needs matplotlib, which is not installed; fix: pip install matplotlib") from None
    suffixes = [f".{format}" for format in FigureCanvasAgg.get_supported_filetypes()]
    if file.suffix.lower() not in suffixes:
        raise UsageError(f"--curve {file}: must end in one of {' '.join(suffixes)}, got {file.suffix!r}")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--curve {file}: {file.absolute().parent} is not a directory; make it first")


def draw(answers: Sequence[Judged], score: Score, name: str, file: Path) -> None:
    """Draw quality over coverage: answers dropped by confidence, against dropping the worst first and any. The suffix
    of `file` selects the format. name: of the score. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    own = {answer: score([answer.text], [answer.reference]) for answer in dict.fromkeys(answers)}
    orders = {
        "worst answers first (by the references)": sorted(answers, key=lambda answer: -own[answer]),
        "least certain answers first": by_confidence(answers),
    }
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for (label, order), style in zip(orders.items(), ("--", "-o"), strict=True):
        values = [quality(order, coverage, score) for coverage in CURVE]
        axis.plot([100 * coverage for coverage in CURVE], values, style, markersize=3.5, label=label)
    axis.axhline(quality(answers, 1.0, score), color="grey", linestyle=":", label="any answers")
    axis.set_xlabel("answers kept, %")
    axis.set_ylabel(f"{name} of the answers kept")
    axis.invert_xaxis()
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(file, dpi=150)
