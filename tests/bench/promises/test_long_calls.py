"""A kill and reloads in their smallest form; idle batches need a machine that nothing else uses."""

import json
import subprocess
import sys

import pytest

from tests.tiny import TEXTS, tiny_config, tiny_model


@pytest.mark.slow
def test_long_calls_of_tiny_bundles(exported, tmp_path):
    bundles = [str(exported(tiny_model(tiny_config("encoder_decoder"), seed))) for seed in (6, 3)]
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\tzwei\n" for text in TEXTS), encoding="utf-8")
    flags = ["--parts", "kills", "reloads", "--kills", "1", "--gap-s", "1", "--deadline-s", "3", "--max-tokens", "4"]
    command = [
        sys.executable,
        "-m",
        "bench",
        "long-calls",
        "--bundle",
        bundles[0],
        "--other",
        bundles[1],
        *flags,
        "--data",
        str(data),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout)
    assert [verdict for verdict in found["verdicts"] if not verdict["met"]] == [], done.stdout
    assert len(found["verdicts"]) == 4
    assert found["figures"]["kill -9 of the engine process"] == 1
