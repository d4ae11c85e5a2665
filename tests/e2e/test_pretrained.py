"""Imported models, exported and run by a real engine, answer as `generate` does there where they come from."""

import contextlib
import random

import pytest
import torch

from export.bundle import load_bundle
from export.to_onnx import export_bundle
from model.takeover import take_over
from model.tokenizer import Tokenizer
from service.engine import Engine, EngineConfig
from service.request import Request
from service.runner import OnnxModel
from service.scheduler import SchedulerConfig
from tests.decoders import REALISTIC, make_decoder
from tests.fakes import ask

# One of each family; `tests.model.test_pretrained` compares the logits of all of them.
SERVED = ("gpt2", "llama3", "mistral", "qwen2", "qwen3", "gemma", "phi")


def words(size):
    """A tokenizer with so many entries."""
    names = (f"w{number}" for number in range(4, size))
    return Tokenizer.train([" ".join(names)], kind="words", vocab_size=size)


@contextlib.contextmanager
def engine(theirs, path, rows):
    """An engine that serves a model of transformers, and keeps beginnings of prompts."""
    theirs.save_pretrained(path / "theirs")
    tokenizer = words(theirs.config.vocab_size)
    take_over(path / "theirs", path / "ours", tokenizer)
    export_bundle(path / "ours", path / "bundle")
    model = OnnxModel.open(path / "bundle", load_bundle(path / "bundle"))
    settings = EngineConfig(scheduler=SchedulerConfig(max_rows=rows, prefix_bytes=1 << 24), checks_invariants=True)
    engine = Engine(model.runner(max_rows=rows), tokenizer, settings)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def prompts_for(theirs, count, lengths, seed):
    """Random prompts of every length, each second one beginning as another one does."""
    rng = random.Random(seed)

    def ids(count):
        return [rng.randrange(4, theirs.config.vocab_size) for _ in range(count)]

    common = ids(max(lengths))
    prompts = [ids(length) for _, length in zip(range(count), lengths * count, strict=False)]
    return [common[: len(p) - 2] + p[len(p) - 2 :] if i % 2 else p for i, p in enumerate(prompts)]


def generate(theirs, prompts, max_tokens):
    """Greedy answers of transformers, those of one length at once: no padding anywhere."""
    answers = {}
    for length in {len(prompt) for prompt in prompts}:
        same = [prompt for prompt in prompts if len(prompt) == length]
        tokens = torch.tensor(same)
        with torch.no_grad():
            out = theirs.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=theirs.config.eos_token_id,
            )
        for prompt, answer in zip(same, out[:, length:].tolist(), strict=True):
            end = answer.index(theirs.config.eos_token_id) + 1 if theirs.config.eos_token_id in answer else None
            answers[tuple(prompt)] = tuple(answer[:end])
    return [answers[tuple(prompt)] for prompt in prompts]


async def check(theirs, path, prompts, *, max_tokens, rows):
    """Every prompt is asked at once; more than a few answers must differ, or equality would say little."""
    expected = generate(theirs, prompts, max_tokens)
    assert len({answer[-3:] for answer in expected}) > len(prompts) // 2, "answers vary"
    requests = [
        Request(request_id=str(i), prompt=tuple(prompt), max_tokens=max_tokens) for i, prompt in enumerate(prompts)
    ]
    with engine(theirs, path, rows) as served:
        sinks = await ask(served, *requests)
    assert [sink.finals[0].hypotheses[0].tokens for sink in sinks] == expected


@pytest.mark.parametrize("name", SERVED)
async def test_served_answers_are_those_of_generate(name, tmp_path):
    theirs = make_decoder(name, num_hidden_layers=1)
    prompts = prompts_for(theirs, 20, [1, 5, 17, 70, 140], seed=name)
    await check(theirs, tmp_path, prompts, max_tokens=12, rows=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", REALISTIC)
async def test_served_answers_of_realistic_shapes_are_those_of_generate(name, tmp_path):
    theirs = make_decoder(name, **REALISTIC[name])
    prompts = prompts_for(theirs, 200, [1, 3, 16, 40, 129, 200, 300, 515], seed=name)
    await check(theirs, tmp_path, prompts, max_tokens=24, rows=16)
