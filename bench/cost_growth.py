"""Growth of step time with rows and cached positions, and of encoding time with source length.

Growth is at most linear when doubling the size never more than doubles the time. Each doubling is reported as a
fraction of that: 1 is linear, 0.5 is free. The verdict is on the worst doubling of each curve, with 10 % for noise.

"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Flag, case
from bench.measure import Spread, Verdict, interleaved, machine, report
from bench.speed_models import MODEL_OPTIONS, chosen_model
from bench.steps import Rows
from export.bundle.directory import load_bundle
from export.passes.quantization_scheme import SCHEMES
from service.runtime.runner import OnnxModel

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CACHED = (16, 32, 64, 128, 256, 511)
SOURCES = (16, 32, 64, 128, 256, 512)
FIXED_ROWS = 32  # where the cached length varies
NOISE = 1.1
BUDGET_S = 0.25  # of one measurement
CURVES = {
    "rows": "a decode step by rows",
    "cached": f"a decode step of {FIXED_ROWS} rows by cached positions",
    "source": "encoding one source by its tokens",
}
X_LABELS = {"rows": "rows", "cached": "cached positions per row", "source": "source tokens"}


def jobs(model: OnnxModel, *, quick: bool) -> dict[str, Callable[[], float]]:
    """ms by curve and size, "rows 16"."""
    made: dict[str, Callable[[], float]] = {}
    skip = 2 if quick else 1
    for rows in ROWS[::skip]:
        made[f"rows {rows}"] = step_job(Rows(model, rows))
    for cached in CACHED[::skip]:
        made[f"cached {cached}"] = step_job(Rows(model, FIXED_ROWS, context=cached))
    for source in SOURCES[::skip]:
        made[f"source {source}"] = source_job(model, source)
    return made


def step_job(rows: Rows) -> Callable[[], float]:
    count = max(3, min(30, int(BUDGET_S / rows.step())))
    return lambda: 1e3 * float(np.median([rows.step() for _ in range(count)]))


def source_job(model: OnnxModel, tokens: int) -> Callable[[], float]:
    return lambda: 1e3 * float(np.median([Rows(model, 1, source_tokens=tokens).join_s for _ in range(3)]))


def worst_growth(sizes: Sequence[int], figures: Sequence[float]) -> float:
    """The most that a step from one size to the next costs, as a share of what linear growth would."""
    steps = zip(sizes, sizes[1:], figures, figures[1:], strict=False)
    return max((after / before) / (larger / smaller) for smaller, larger, before, after in steps)


def draw(file: Path, curves: dict[str, dict[int, Spread]], title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    figure, places = plt.subplots(1, len(curves), figsize=(5 * len(curves), 4), layout="constrained")
    for place, (name, curve) in zip(places, curves.items(), strict=True):
        sizes, middles = list(curve), [spread.median for spread in curve.values()]
        place.fill_between(
            sizes, [s.low for s in curve.values()], [s.high for s in curve.values()], alpha=0.3, label="min to max"
        )
        place.plot(sizes, middles, marker="o", label="median")
        place.plot(sizes, [middles[-1] * size / sizes[-1] for size in sizes], "--", label="linear growth to the last")
        place.set(xscale="log", yscale="log", title=CURVES[name], xlabel=X_LABELS[name], ylabel="time, ms")
        place.set_xticks(sizes, list(map(str, sizes)))
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        place.minorticks_off()
        place.legend()
    figure.suptitle(title)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)


@case(
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    plot=Flag(Path, help="a .svg or .png to draw"),
    repetitions=5,
    quick=Flag(False, help="every second size"),
)
def cost_growth(options: argparse.Namespace) -> None:
    bundle = chosen_model(options).bundle(options.scheme)
    model = OnnxModel.open(bundle, load_bundle(bundle), device="cpu")
    figures = interleaved(jobs(model, quick=options.quick), options.repetitions)
    curves: dict[str, dict[int, Spread]] = {name: {} for name in CURVES}
    for name, spread in figures.items():
        curve, size = name.split()
        curves[curve][int(size)] = spread
    verdicts = [
        Verdict(
            f"growth, {CURVES[name]}",
            round(worst_growth(list(curve), [spread.median for spread in curve.values()]), 3),
            NOISE,
            unit="of linear",
            is_limit=True,
        )
        for name, curve in curves.items()
    ]
    if options.plot:
        draw(options.plot, curves, f"{options.scheme}, {machine()['model']}, one thread")
    result: dict[str, Any] = {"scheme": options.scheme, **figures}
    report(result, verdicts, as_json=options.json)
