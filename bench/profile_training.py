"""Profile training steps: target tokens/s, operations/s beside the peak, and the share of each kind of operation.

    python -m bench profile-training [--data FILE.tsv[.gz]] [--preset tatoeba-small] [--steps 20] [--threads N]
                                     [--bf16 auto|true|false]

Without data, sentence pairs of random tokens in the lengths of short everyday sentences. Prints the processor's name,
since figures of different machines cannot be compared.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from bench.case import Flag, case
from model.architectures import build
from model.presets import load_preset
from model.tokenizer import Tokenizer
from model.training.data.examples import Examples, batches_of, read_tsv
from model.training.flops import peak_flops_per_s, training_flops
from model.training.objective.loss import batch_loss, takes_bf16
from model.training.objective.optimiser import make_optimiser
from model.training.report import processor_name

KINDS = {  # operator → what it is for; the rest is "other"
    "aten::mm": "products",
    "aten::addmm": "products",
    "aten::bmm": "attention products",
    "aten::copy_": "copies and casts",
    "aten::_softmax": "softmax (attention and loss)",
    "aten::_softmax_backward_data": "softmax (attention and loss)",
    "aten::native_layer_norm": "norms",
    "aten::native_layer_norm_backward": "norms",
    "aten::add": "residuals",
    "aten::add_": "gradient sums",
    "aten::sum": "bias gradients",
    "aten::clamp_min": "activations",
    "aten::threshold_backward": "activations",
    "aten::_fused_adamw_": "optimiser",
    "aten::linalg_vector_norm": "optimiser",
}


def made_up_pairs(count):
    rng = random.Random(1)
    words = [f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{number}" for number in range(3000)]
    lengths = [min(40, 2 + int(rng.expovariate(1 / 5))) for _ in range(count)]
    return Examples(
        [(" ".join(rng.choices(words, k=length)), " ".join(rng.choices(words, k=length))) for length in lengths],
        "made-up pairs",
    )


BF16: dict[str, bool | Literal["auto"]] = {"auto": "auto", "true": True, "false": False}


@case(
    data=Path,
    preset="tatoeba-small",
    steps=20,
    threads=torch.get_num_threads(),
    bf16=Flag("auto", choices=tuple(BF16), help="products in bfloat16"),
)
def profile_training(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    preset = load_preset(arguments.preset)
    examples = read_tsv([arguments.data]) if arguments.data else made_up_pairs(20_000)
    texts = (text for pair in examples.pairs[:20_000] for text in pair)
    tokenizer = Tokenizer.train(texts, kind=preset.train.tokenizer, vocab_size=preset.train.vocab_size)
    examples = Examples(examples.pairs[:60_000], examples.name)
    config = preset.model.replace(vocab_size=tokenizer.vocab_size)
    batches = batches_of(examples, tokenizer, config, preset.train)
    torch.manual_seed(1)
    model = build(config).train()
    optimiser = make_optimiser(model, preset.train)
    plan = batches.plan(0)
    settings = preset.train
    cpu = torch.device("cpu")
    bf16 = takes_bf16(BF16[arguments.bf16], cpu)

    def step(number):
        batch = batches.load(plan[number % len(plan)])
        loss = batch_loss(model, batch, smoothing=settings.label_smoothing, bf16=bf16)
        (loss.smoothed / batch.tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return batch

    step(0)
    started, processor_s = time.monotonic(), time.process_time()
    seen = [step(number) for number in range(1, arguments.steps + 1)]
    wall_s, processor_s = time.monotonic() - started, time.process_time() - processor_s
    tokens, flops = sum(batch.tokens for batch in seen), sum(training_flops(config, batch) for batch in seen)
    peak = peak_flops_per_s(cpu, torch.bfloat16 if bf16 else torch.float32, arguments.threads)
    print(f"{processor_name()}, {arguments.threads} threads, {examples.name}, vocabulary {tokenizer.vocab_size}")
    print(f"{tokens / wall_s:,.0f} target tokens/s; {tokens / processor_s:,.0f} per second of processor time")
    kind = "bfloat16" if bf16 else "float32"
    print(f"{flops / wall_s / 1e9:,.1f} GFLOP/s, {flops / (wall_s * peak):.0%} of the peak {peak / 1e9:,.1f}, {kind}")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(4):
            step(number)
    shares: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = KINDS.get(event.key, "other")
        shares[kind] = shares.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(shares.values())
    for kind, spent in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"{spent / total:6.1%}  {kind}")
