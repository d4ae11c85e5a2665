"""Bundles for measurements of speed: the graphs of any weights, which are not compared with PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from export.bundle import file_digests, write_bundle
from export.manifest import SHORTLIST, TOKENIZER, Golden, Manifest, Shortlist
from export.manifest_entries import entries_of
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.variants import Traced, save_variant, trace_model
from model.architectures import GenerativeModel
from model.tokenizer import SPECIAL, Tokenizer
from service.engine.golden_check import decode_single
from service.request import Request
from service.runtime.runner import OnnxModel

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
    shortlist: Shortlist | None = None,
    traced: Traced | None = None,
) -> None:
    """Write a bundle of one scheme. source: of the golden answer; samples: what static schemes are calibrated on;
    traced: the graphs of this model, if they are known."""
    config = model.config

    def fill(directory: Path) -> Manifest:
        tokenizer.save(directory / TOKENIZER)
        if shortlist is not None:
            (directory / SHORTLIST).write_text(shortlist.to_json())
        has_one = shortlist is not None
        unchecked = Manifest(
            **entries_of(config, attention=False),
            variants=(
                save_variant(
                    traced or trace_model(model, shortlist=has_one),
                    directory,
                    SCHEMES[scheme],
                    ranges=calibrate(model, samples()) if SCHEMES[scheme].needs_ranges else None,
                ),
            ),
            shortlist=SHORTLIST if has_one else "",
            golden=Golden(source=source, prompt=(config.bos_id,), output=(config.eos_id,)),
            lineage={},
            parity={"passed": True, "checks": [{"name": "none: a bundle for measuring speed", "passed": True}]},
            created="2000-01-01T00:00:00+00:00",
        )
        question = Request(request_id="golden", source=source, prompt=(config.bos_id,), max_tokens=4)
        written = dataclasses.replace(unchecked, files=file_digests(directory))
        answer = decode_single(OnnxModel.open(directory, written, device="cpu").runner(max_rows=1), question)
        return dataclasses.replace(unchecked, golden=dataclasses.replace(unchecked.golden, output=tuple(answer)))

    write_bundle(path, fill)
