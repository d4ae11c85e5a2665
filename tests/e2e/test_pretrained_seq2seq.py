"""Imported encoder-decoder models, exported and run by a real engine, answer as `generate` does with what they are."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch

from bench.engine_pool import EnginePool
from export.bundle.directory import load_bundle
from export.options import ExportOptions
from export.to_onnx import export_bundle
from glossa.client import Client
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from model.tokenizer import Tokenizer
from service.decoding.prompt_form import PromptForm
from service.options import DecodingOptions
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from tests.e2e.process import serving
from tests.engines import engine_limits
from tests.fakes import CheckedEngine, ask

pytest.importorskip("transformers")
from tests.model.pretrained.test_special_tokens import MADLAD, madlad
from tests.model.tokenizers.spm import processor, trained
from tests.multilingual import lines
from tests.pretrained_seq2seq import REALISTIC, TINY, eos_of, make, transformers

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


@pytest.mark.slow
def test_languages_before_a_text_are_read_as_by_generate(tmp_path):
    """MADLAD's: a T5 with pieces such as <2de>, through a server."""
    (tmp_path / "theirs").mkdir()
    path, sentencepiece = madlad(tmp_path / "theirs", "spiece.model"), processor(trained(**MADLAD))
    import_checkpoint(path, tmp_path / "ours", convert_tokenizer(path), source_unit="text")
    export_bundle(tmp_path / "ours", tmp_path / "bundle", ExportOptions(precisions=("fp32",)))
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(path).eval()
    texts = [text for text in lines(600, seed=4) if 2 < len(sentencepiece.encode(text)) < 30][:200]
    asked = [(text, ("de", "zh_Latn")[row % 2]) for row, text in enumerate(texts)]
    sources = [[*sentencepiece.encode(f"<2{language}> {text}"), 1] for text, language in asked]
    expected = generate(theirs, sources, 16)
    assert (len(asked), len(set(expected)) > 100) == (200, True), "answers vary"
    with serving(models={"m": str(tmp_path / "bundle")}) as server, Client(server.address) as client:
        answer = partial(client.translate, max_tokens=16, include_tokens=True)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda one: answer(one[0], target_language=one[1]).tokens, asked))
    assert [tuple(tokens) for tokens in answers] == expected
