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

import yaml

from bench.case import case
from bench.profile_training import made_up_pairs
from model.presets import load_preset
from model.training.report import processor_name

LOGS = 6  # rows of the log of each run, of which the first two are left out


def tokens_per_s(recipe: Path, data: Path, out: Path, *, processes: int, threads: int, flags: tuple[str, ...]) -> float:
    """Target tokens a second of a run, by the median row of its log."""
    command = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *(f"--nproc-per-node={processes}", "-m", "cli.main", "train"),
        *(str(recipe), "--data", str(data), "--out", str(out), *flags),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    with (out / "metrics.csv").open() as file:
        rates = [float(row["tokens_per_s"]) for row in csv.DictReader(file) if row["tokens_per_s"]]
    return statistics.median(rates[2:])


@case(data=Path, preset="tatoeba-small", cores=2, steps=24, rounds=3, shard=False)
def ranks(arguments: argparse.Namespace) -> None:
    cores, steps = arguments.cores, arguments.steps
    preset = load_preset(arguments.preset)
    config = preset.train.replace(
        accumulate=cores,
        minutes=0.0,
        steps=steps,
        log_every_steps=max(1, steps // LOGS),
        save_every_steps=steps,
        validate_every_steps=steps,
        average_checkpoints=1,
        validation_size=10,
    )
    flags = ("--shard",) if arguments.shard else ()
    arrangements = {f"{cores} x 1 core": (cores, 1, flags), f"1 x {cores} cores": (1, cores, ())}
    found: dict[str, list[float]] = {name: [] for name in arrangements}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe, data = folder / "recipe.yaml", arguments.data or folder / "pairs.tsv"
        shape = {key: value for key, value in preset.model.to_json().items() if isinstance(value, str | float | bool)}
        recipe.write_text(yaml.safe_dump({"model": shape, "train": config.to_json()}))
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
