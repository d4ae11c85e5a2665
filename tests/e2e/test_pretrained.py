"""Imported models, exported and run by a real engine, answer as `generate` does there where they come from."""

import contextlib
import random

import pytest
import tokenizers
import torch
import transformers
from typer.testing import CliRunner

import cli.main
from bench.engine_pool import EnginePool
from export.bundle.directory import load_bundle
from export.to_onnx import export_bundle
from glossa.client import Client
from model.pretrained.import_checkpoint import import_checkpoint
from model.tokenizer import Tokenizer
from service.options import DecodingOptions
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from tests.decoders import REALISTIC, make_decoder
from tests.e2e.process import serving
from tests.engines import engine_limits
from tests.fakes import CheckedEngine, ask
from tests.tiny import TEXTS

# One of each family; `tests.model.pretrained.test_decoder` compares the logits of all of them.
SERVED: tuple[str, ...] = ("gpt2", "llama3", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3", "gemma2")
SERVED += ("smollm3", "olmo2", "granite", "cohere", "cohere2", "hunyuan_v1_dense", "qwen3 yarn, late windows")
DIFFERING = ("gemma2", "gemma3_text", "smollm3", "cohere2", "qwen3 yarn, late windows")  # need more than one layer


def words(size):
    """A tokenizer with so many entries."""
    names = (f"w{number}" for number in range(4, size))
    return Tokenizer.train([" ".join(names)], kind="words", vocab_size=size)


@contextlib.contextmanager
def engine(theirs, path, rows):
    """An engine that serves a model of transformers, and keeps beginnings of prompts."""
    theirs.save_pretrained(path / "theirs")
    tokenizer = words(theirs.config.vocab_size)
    import_checkpoint(path / "theirs", path / "ours", tokenizer)
    export_bundle(path / "ours", path / "bundle")
    model = OnnxModel.open(path / "bundle", load_bundle(path / "bundle"))
    settings = engine_limits(max_rows=rows, prefix_cache_bytes=1 << 24)
    engine = EnginePool([CheckedEngine(model.runner(max_rows=rows), tokenizer, settings)])
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


def generate(theirs, prompts, max_tokens, **options):
    """Greedy answers of transformers, those of one length at once: no padding anywhere."""
    ends = theirs.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
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
                pad_token_id=ends[0],
                **options,
            )
        for prompt, answer in zip(same, out[:, length:].tolist(), strict=True):
            end = next((place for place, token in enumerate(answer, 1) if token in ends), None)
            answers[tuple(prompt)] = tuple(answer[:end])
    return [answers[tuple(prompt)] for prompt in prompts]


async def check(theirs, path, prompts, *, max_tokens, rows, beam_size=1):
    """All prompts are sent concurrently; more than a few answers must differ, or equality would prove little."""
    beams = {"num_beams": beam_size, "early_stopping": True} if beam_size > 1 else {}
    expected = generate(theirs, prompts, max_tokens, **beams)
    assert len({answer[-3:] for answer in expected}) > len(prompts) // 2, "answers vary"
    options = DecodingOptions(beam_size=beam_size)
    requests = [
        Request(request_id=str(i), prompt=tuple(prompt), max_tokens=max_tokens, options=options)
        for i, prompt in enumerate(prompts)
    ]
    with engine(theirs, path, rows) as served:
        sinks = await ask(served, *requests, within_s=600)
    assert [sink.finals[0].hypotheses[0].tokens for sink in sinks] == expected


async def test_prompts_are_longer_than_what_caches_with_a_window_keep(tmp_path):
    """Windows of 20 positions, whose caches have 280."""
    theirs = make_decoder("gemma3_text", max_position_embeddings=640)
    prompts = prompts_for(theirs, 20, [1, 20, 135, 290, 600], seed=1)
    await check(theirs, tmp_path, prompts, max_tokens=12, rows=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3_text", *SERVED])
async def test_served_answers_are_those_of_generate(name, tmp_path):
    theirs = make_decoder(name, **({} if name in DIFFERING else {"num_hidden_layers": 1}))
    prompts = prompts_for(theirs, 20, [1, 5, 17, 70, 140], seed=name)
    await check(theirs, tmp_path, prompts, max_tokens=12, rows=8)


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 4])
async def test_any_of_several_tokens_ends_an_answer(tmp_path, beam_size):
    theirs = make_decoder("llama3", num_hidden_layers=1)
    theirs.generation_config.eos_token_id = ends = [2, *range(5, 97, 7)]
    prompts = prompts_for(theirs, 20, [1, 5, 17], seed=0)
    answers = generate(theirs, prompts, 12)
    assert len({answer[-1] for answer in answers if len(answer) < 12} & set(ends)) > 3
    await check(theirs, tmp_path, prompts, max_tokens=12, rows=8, beam_size=beam_size)


def byte_level(path):
    """A tokenizer such as Llama 3's: bytes, special tokens after them, and one of those before every text."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.add_special_tokens(["<|begin|>", "<|end|>"])
    begin = backend.token_to_id("<|begin|>")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    backend.save(str(path / "tokenizer.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))


@pytest.mark.slow
def test_texts_are_answered_as_generate_answers_them(tmp_path):
    tokenizer = byte_level(tmp_path)
    begin, end = tokenizer.convert_tokens_to_ids(["<|begin|>", "<|end|>"])
    ids = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end}
    theirs = make_decoder("llama3", vocab_size=len(tokenizer) + 3, num_hidden_layers=1, **ids)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    for verb, *names, options in (
        ("import", "theirs", "ours", []),
        ("export", "ours", "bundle", ["--precision", "fp32"]),
    ):
        paths = [str(tmp_path / name) for name in names]
        done = CliRunner().invoke(cli.main.app, [verb, *paths, *options])
        assert done.exit_code == 0, done.output
    texts = [*TEXTS, "Füße 日本 <|end|> 🦊"]  # special tokens that a user types are text
    prompts = [tokenizer(text, split_special_tokens=True)["input_ids"] for text in texts]
    expected = generate(theirs, prompts, 16)
    with serving(models={"m": str(tmp_path / "bundle")}) as server, Client(server.address) as client:
        answers = [client.generate(text, max_tokens=16, include_tokens=True) for text in texts]
    assert [tuple(answer.tokens) for answer in answers] == expected
    assert [answer.text for answer in answers] == [
        tokenizer.decode(list(tokens), skip_special_tokens=True) for tokens in expected
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", REALISTIC)
async def test_served_answers_of_realistic_shapes_are_those_of_generate(name, tmp_path):
    theirs = make_decoder(name, **REALISTIC[name])
    prompts = prompts_for(theirs, 200, [1, 3, 16, 40, 129, 200, 258, 300], seed=name)
    await check(theirs, tmp_path, prompts, max_tokens=16, rows=16)
