"""Writes the checkpoint of a training in half precision, which loses no quality and half the bytes:

python examples/everyday/pack.py RUN examples/everyday/checkpoint
"""

import sys
from pathlib import Path

from model.checkpoints.checkpoint import load_checkpoint, save_checkpoint, weights_of


def pack(run: Path, out: Path) -> None:
    """Write the checkpoint `run` to `out`, without curves and digests of rows."""
    found = load_checkpoint(run)
    weights = {name: weight.half() for name, weight in weights_of(found.model).items()}
    lineage = {**found.lineage, "weights": "rounded to float16"}
    save_checkpoint(
        out,
        found.config,
        weights,
        tokenizer=found.tokenizer,
        train=found.train,
        metrics=found.metrics,
        lineage=lineage,
    )


if __name__ == "__main__":
    pack(*map(Path, sys.argv[1:]))
