"""Bundles for measurements of speed: the graphs of any weights, which are not compared with PyTorch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.gpu.decoding import decode, sureness
from export.bundle.directory import file_digests, write_bundle
from export.bundle.manifest import TOKENIZER, Golden, Manifest
from export.manifest_entries import entries_of
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.variants import Traced, save_variant, trace_model
from model.architectures import GenerativeModel
from model.tokenizer import SPECIAL, Tokenizer
from service.engine.golden_check import decode_single
from service.request import Request
from service.runtime.onnx_model import OnnxModel

Samples = Sequence[tuple[Sequence[int], Sequence[int]]]


def random_tokenizer(words: int) -> Tokenizer:
    """Every token a word, w0 being the first after the special ones."""
    vocabulary = " ".join(f"w{number}" for number in range(words - len(SPECIAL)))
    return Tokenizer.train([vocabulary], kind="words", vocab_size=words)


def save_unverified(
    path: Path,
    model: GenerativeModel,
    tokenizer: Tokenizer,
    scheme: str = "fp32",
    *,
    source: tuple[int, ...] = (),
    samples: Callable[[], Samples] = tuple,
    traced: Traced | None = None,
    also_fp16: bool = False,
    questions: Sequence[Request] = (),
) -> None:
    """Write a bundle of one scheme. source: of the golden answer; samples: what static schemes are calibrated on;
    traced: the graphs of this model, if they are known. also_fp16: with the variant for CUDA. questions: instead of
    `source`; the one whose answer is the surest becomes the golden one."""
    config = model.config

    def fill(directory: Path) -> Manifest:
        tokenizer.save(directory / TOKENIZER)
        graphs = traced or trace_model(model)
        ranges = calibrate(model, samples()) if SCHEMES[scheme].needs_ranges else None
        variants = [save_variant(graphs, directory, SCHEMES[scheme], ranges=ranges)]
        if also_fp16:
            variants.append(save_variant(trace_model(copy.deepcopy(model).half()), directory, SCHEMES["fp16"]))
        unchecked = Manifest(
            **entries_of(config, attention=False),
            variants=tuple(variants),
            shortlist="",
            golden=Golden(source=source, prompt=(config.bos_id,), output=(config.eos_id,)),
            lineage={},
            parity={"passed": True, "checks": [{"name": "none: a bundle for measuring speed", "passed": True}]},
            created="2000-01-01T00:00:00+00:00",
        )
        question = Request(request_id="golden", source=source, prompt=(config.bos_id,), max_tokens=4)
        written = dataclasses.replace(unchecked, files=file_digests(directory))
        runner = OnnxModel.open(directory, written, device="cpu").runner(max_rows=1)
        if questions:
            question = max(questions, key=lambda one: sureness(decode(runner, [one])[one.request_id]))
        answer = tuple(decode_single(runner, question))
        golden = Golden(source=question.source, prompt=question.prompt, output=answer)
        return dataclasses.replace(unchecked, golden=golden)

    write_bundle(path, fill)
