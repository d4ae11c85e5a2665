"""kill -9 a training run at random moments, resume it every time, and compare the weights with an undisturbed run.

The run is a tiny copy task with dropout and accumulation, so most of the time is the start of Python.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from bench.case import Flag, case
from model.architecture_config import EncoderDecoderConfig
from model.config import TrainConfig
from model.training.data.embedded import copy_examples
from model.training.train import train

STEPS_PER_KILL = 12
MODEL = EncoderDecoderConfig(
    d_model=16,
    num_heads=2,
    d_ff=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.1,
    max_source_len=16,
    max_target_len=16,
)
TRAIN = TrainConfig(
    tokenizer="words",
    vocab_size=40,
    batch_tokens=128,
    accumulate=2,
    steps=5 * STEPS_PER_KILL,
    warmup_steps=10,
    save_every_steps=3,
    validate_every_steps=20,
    log_every_steps=1,
    average_checkpoints=3,
    validation_size=20,
    bf16=False,
)


def run(out: Path, *, kills: int = 5, resume: bool = False) -> None:
    """The whole training, or the rest of it, on one thread: bits depend on how work is divided among threads."""
    config = replace(TRAIN, steps=kills * STEPS_PER_KILL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(MODEL, config, data=copy_examples(600, seed=1), out=out, resume=resume)
    finally:
        torch.set_num_threads(threads)


def killed_run(out: Path, *, kills: int, seed: int) -> list[int]:
    """Train in child processes of which all but the last are killed; the number of log lines each had written."""
    rng, heard = random.Random(seed), list[int]()
    for attempt in range(kills + 1):
        command = [sys.executable, "-m", "bench", "kill-resume", "--kills", str(kills), "--child", str(out)]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        deadly, lines = rng.randint(5, STEPS_PER_KILL - 4), 0  # a state is saved every third step
        for line in child.stderr:
            lines += line.startswith("step ")
            if attempt < kills and lines == deadly:
                child.send_signal(signal.SIGKILL)  # lands anywhere in the next steps: in a product, in a save
                break
        child.stderr.close()
        code = child.wait()
        assert code == (-signal.SIGKILL if attempt < kills else 0), code
        heard.append(lines)
    return heard


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@case(kills=5, seed=1, child=Flag(Path, argparse.SUPPRESS))
def kill_resume(args: argparse.Namespace) -> None:
    kills, seed = args.kills, args.seed
    if args.child:
        run(args.child, kills=kills, resume=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, killed = Path(folder) / "undisturbed", Path(folder) / "killed"
        run(undisturbed, kills=kills)
        heard = killed_run(killed, kills=kills, seed=seed)
        same = weights(undisturbed) == weights(killed)
    print(f"{kills} kills after {heard[:-1]} steps of their processes, {heard[-1]} in the last: ", end="")
    print("weights bit-identical" if same else "WEIGHTS DIFFER")
    sys.exit(not same)
