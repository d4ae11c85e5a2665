"""Imported encoder-decoder models, exported and run by a real engine, answer as `generate` does with what they are."""

import contextlib
from dataclasses import replace

import pytest
import torch

from bench.engine_pool import EnginePool
from export.bundle.directory import load_bundle
from export.to_onnx import export_bundle
from model.pretrained.import_checkpoint import import_checkpoint
from model.tokenizer import Tokenizer
from service.decoding.prompt_form import PromptForm
from service.options import DecodingOptions
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from tests.engines import engine_limits
from tests.fakes import CheckedEngine, ask

pytest.importorskip("transformers")
from tests.pretrained_seq2seq import REALISTIC, TINY, eos_of, make

BEAMS = 4  # sources that are asked about a second time, with beam search
QUICK = ("bart",)  # norms after each block, and two tokens before each answer
SLOW = ("t5", "marian", "mbart", "m2m_100", "t5-1.1", "mt5")
BEGINNINGS = {"bart": (2, 0), "mbart": (7,), "m2m_100": (2, 11)}  # the second token is forced, as a language is


@contextlib.contextmanager
def engine(theirs, path, rows, form):
    """An engine that serves a model of transformers."""
    theirs.save_pretrained(path / "theirs")
    names = " ".join(f"w{number}" for number in range(4, theirs.config.vocab_size))
    tokenizer = Tokenizer.train([names], kind="words", vocab_size=theirs.config.vocab_size)
    import_checkpoint(path / "theirs", path / "ours", tokenizer)
    export_bundle(path / "ours", path / "bundle")
    model = OnnxModel.open(path / "bundle", load_bundle(path / "bundle"))
    settings = engine_limits(max_rows=rows)
    engine = EnginePool([CheckedEngine(model.runner(max_rows=rows), tokenizer, settings, form=form)])
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def sources_for(theirs, count, longest, seed):
    """Ids of random texts of 1 to `longest` tokens with their eos."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    most = theirs.config.vocab_size - 1
    return [[*torch.randint(3, most, (n,), generator=generator).tolist(), eos_of(theirs)] for n in lengths]


def generate(theirs, sources, max_tokens, together=50, **options):
    """Greedy answers of transformers, many at once, padded and masked."""
    answers, begin = [], 1 + (theirs.generation_config.forced_bos_token_id is not None)
    for start in range(0, len(sources), together):
        some = sources[start : start + together]
        padded = torch.full((len(some), max(map(len, some))), theirs.config.pad_token_id)
        for row, ids in zip(padded, some, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        mask = torch.arange(padded.shape[1]) < torch.tensor(list(map(len, some)))[:, None]
        most = max_tokens + begin - 1
        found = theirs.generate(padded, attention_mask=mask.long(), max_new_tokens=most, do_sample=False, **options)
        for ids in found[:, begin:].tolist():
            end = ids.index(eos_of(theirs)) + 1 if eos_of(theirs) in ids else max_tokens
            answers.append(tuple(ids[:end]))
    return answers


async def check(name, shape, path, *, count, max_tokens, rows):
    """All sources are sent concurrently; more than a few answers must differ, or equality would prove little."""
    theirs = make(name, shape)
    begin = BEGINNINGS.get(name, (theirs.config.decoder_start_token_id,))
    if len(begin) > 1:
        theirs.generation_config.forced_bos_token_id = begin[1]
    sources = sources_for(theirs, count, min(shape.positions, 130) - 1, seed=3)
    expected = generate(theirs, sources, max_tokens)
    # Random weights of 12 layers with the norm after each repeat one word, which the source determines.
    assert len(set(expected)) > count // 5, "answers vary"
    beams = generate(theirs, sources[:BEAMS], max_tokens, num_beams=4, early_stopping=True)
    options = DecodingOptions(beam_size=4)
    requests = [
        Request(request_id=str(i), source=tuple(source), prompt=begin, max_tokens=max_tokens)
        for i, source in enumerate(sources)
    ]
    requests += [
        replace(request, request_id=f"beam {request.request_id}", options=options) for request in requests[:BEAMS]
    ]
    with engine(theirs, path, rows, PromptForm(len(begin) - 1)) as served:
        sinks = await ask(served, *requests)
    assert [sink.finals[0].hypotheses[0].tokens for sink in sinks] == expected + beams


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
async def test_served_answers_are_those_of_generate(name, tmp_path):
    await check(name, TINY._replace(layers=(1, 1)), tmp_path, count=20, max_tokens=12, rows=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", REALISTIC)
async def test_served_answers_of_realistic_shapes_are_those_of_generate(name, tmp_path):
    await check(name, REALISTIC[name], tmp_path, count=200, max_tokens=24, rows=16)
