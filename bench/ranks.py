"""Training throughput: as many processes as cores, each with one thread, against one process with all threads.

    python -m bench ranks [--data FILE.tsv[.gz]] [--preset tatoeba-small] [--cores 2] [--steps 24] [--rounds 3]

Both train the same steps, of as many batches as there are cores, and start anew in every round, in turn. The first rows
of the log, in which processes start and buckets settle, are left out. Without data, sentence pairs of random tokens.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.case import case
from bench.profile_training import made_up_pairs
from model.presets import is_file, load_preset
from model.training.report import processor_name

LOGS = 6  # rows of the log of each run
SETTLING = 2  # the first rows, which are left out


def recipe_of(preset: str, *, cores: int, steps: int) -> dict[str, Any]:
    """The contents of a YAML file for a preset, a name or a file: its model, and a training of so many steps. Raises
    SystemExit if its log has no row that counts."""
    if steps <= SETTLING:
        raise SystemExit(f"--steps: must be at least {SETTLING + 1}, got {steps}: the first rows of a log do not count")
    values: dict[str, Any] = {"preset": preset}
    if is_file(preset):
        values = yaml.safe_load(Path(preset).read_text(encoding="utf-8"))
    changes = {
        "accumulate": cores,
        "minutes": 0.0,
        "steps": steps,
        "log_every_steps": max(1, steps // LOGS),
        "save_every_steps": steps,
        "validate_every_steps": steps,
        "average_checkpoints": 1,
        "validation_size": 10,
    }
    return {**values, "train": {**(values.get("train") or {}), **changes}}


def tokens_per_s(recipe: Path, data: Path, out: Path, *, processes: int, threads: int, flags: tuple[str, ...]) -> float:
    """Target tokens a second of a run, by the median row of its log. Raises SystemExit with what a failed run wrote."""
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *(f"--nproc-per-node={processes}", "-m", "cli.main", "train"),
        *(str(recipe), "--data", str(data), "--out", str(out), *flags),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()[-4000:]}")
    with (out / "metrics.csv").open() as file:
        rates = [float(row["tokens_per_s"]) for row in csv.DictReader(file) if row["tokens_per_s"]]
    return statistics.median(rates[SETTLING:])


@case(data=Path, preset="tatoeba-small", cores=2, steps=24, rounds=3, shard=False)
def ranks(arguments: argparse.Namespace) -> None:
    cores = arguments.cores
    values = recipe_of(arguments.preset, cores=cores, steps=arguments.steps)
    flags = ("--shard",) if arguments.shard else ()
    arrangements = {f"{cores} x 1 core": (cores, 1, flags), f"1 x {cores} cores": (1, cores, ())}
    found: dict[str, list[float]] = {name: [] for name in arrangements}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe, data = folder / "recipe.yaml", arguments.data or folder / "pairs.tsv"
        recipe.write_text(yaml.safe_dump(values))
        config = load_preset(str(recipe)).train
        if not arguments.data:
            data.write_text("".join(f"{source}\t{target}\n" for source, target in made_up_pairs(20_000).pairs))
        for number in range(arguments.rounds):
            for place, (arrangement, (processes, threads, more)) in enumerate(arrangements.items()):
                out = folder / f"{number}-{place}"
                rate = tokens_per_s(recipe, data, out, processes=processes, threads=threads, flags=more)
                found[arrangement].append(rate)
    several, one = found.values()
    ratios = [ours / theirs for ours, theirs in zip(several, one, strict=True)]
    if arguments.json:
        print(json.dumps({"processor": processor_name(), "tokens_per_s": found, "ratios": ratios}))
        return
    print(f"{processor_name()}, {arguments.preset}, {cores} batches of {config.batch_tokens} tokens a step")
    for arrangement, rates in found.items():
        print(f"{arrangement:14} {statistics.median(rates):10,.0f} target tokens/s")
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio by round {listed}; median {statistics.median(ratios):.2f}")
