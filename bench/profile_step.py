"""Profile of a decode step: milliseconds by operator type, measured by ONNX Runtime's profiler.

The profiler adds some time itself, so the report contains both the sum of the nodes and a step without it.

"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.case import Flag, case
from bench.measure import report
from bench.speed_models import MODEL_OPTIONS, chosen_model
from bench.steps import CONTEXT, SOURCE_TOKENS, Rows
from export.bundle.directory import load_bundle
from export.bundle.manifest import SESSION_CONFIG, SESSION_MEM_PATTERN, SESSION_OPTIMIZATION, SESSION_THREADS, Manifest
from export.passes.quantization_scheme import SCHEMES
from service.runtime.runner import OnnxModel

WARM_UP = 5


def profiled(path: Path, manifest: Manifest, rows: int, steps: int) -> dict[str, float]:
    """ms of a step by type of node."""
    opened: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:

        def open_graph(file: Path, providers: list[Any]) -> Any:
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = SESSION_THREADS, 1
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, SESSION_OPTIMIZATION)
            options.enable_mem_pattern, options.log_severity_level = SESSION_MEM_PATTERN, 3
            for key, value in SESSION_CONFIG.items():
                options.add_session_config_entry(key, value)
            options.enable_profiling = file.stem == "decode"
            options.profile_file_prefix = str(Path(directory, file.stem))
            opened[file.stem] = ort.InferenceSession(str(file), options, providers=providers)
            return opened[file.stem]

        stepped = Rows(OnnxModel.open(path, manifest, device="cpu", open_graph=open_graph), rows)
        for _ in range(WARM_UP + steps):
            stepped.step()
        events = json.loads(Path(opened["decode"].end_profiling()).read_text())
    runs = [event for event in events if event["name"] == "model_run"][-steps:]
    began = min(event["ts"] for event in runs)
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= began:
            spent[event["args"]["op_name"]] += event["dur"]
    return {name: round(microseconds / 1e3 / steps, 4) for name, microseconds in spent.most_common()}


def plain_ms(path: Path, manifest: Manifest, rows: int, steps: int) -> float:
    stepped = Rows(OnnxModel.open(path, manifest, device="cpu"), rows)
    return round(1e3 * float(np.median([stepped.step() for _ in range(steps)])), 3)


def table(columns: dict[int, dict[str, float]], plain: dict[int, float]) -> str:
    """Node types down, rows across, in Markdown."""
    most = columns[max(columns)]
    order = sorted({name for column in columns.values() for name in column}, key=lambda name: -most.get(name, 0))
    lines = ["| ms per step | " + " | ".join(f"{rows} rows" for rows in columns) + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for name in order:
        lines.append(f"| {name} | " + " | ".join(f"{column.get(name, 0):.3f}" for column in columns.values()) + " |")
    lines.append("| all nodes | " + " | ".join(f"{sum(column.values()):.3f}" for column in columns.values()) + " |")
    lines.append("| step without profiler | " + " | ".join(f"{plain[rows]:.3f}" for rows in columns) + " |")
    return "\n".join(lines)


@case(
    **MODEL_OPTIONS,
    scheme=Flag("w8a8-static-kv8", choices=list(SCHEMES)),
    bundle=Flag(Path, help="any other bundle"),
    precision=Flag(help="of its variants; the first one if not given"),
    rows=[1, 8, 32, 64],
    steps=60,
)
def profile_step(options: argparse.Namespace) -> None:
    path = options.bundle or chosen_model(options).bundle(options.scheme)
    manifest = load_bundle(path)
    if options.precision:
        manifest = dataclasses.replace(manifest, variants=(manifest.variant(options.precision),))
    columns = {rows: profiled(path, manifest, rows, options.steps) for rows in options.rows}
    plain = {rows: plain_ms(path, manifest, rows, options.steps) for rows in options.rows}
    if not options.json:
        print(table(columns, plain))
        return
    variant = manifest.variants[0]
    scheme = variant.quantization.scheme if variant.quantization else variant.precision
    result = {
        "scheme": scheme,
        "source_tokens": SOURCE_TOKENS,
        "cached": CONTEXT,
        "nodes_ms": columns,
        "step_ms": plain,
    }
    report({**result, "markdown": table(columns, plain)}, [], as_json=True)
