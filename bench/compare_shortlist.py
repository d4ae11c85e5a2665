"""Speedup of a shortlist, in Glossa and in CTranslate2 with the same shortlist as its vocabulary map.

In-process and interleaved: full vocabulary and shortlist, in single stream (`alone`), throughput (`offline`) and with
beams of 4 (`beam`). The random model has a random shortlist of 256 tokens for each source without the end token, so all
answers have equal length; a bundle has its own shortlist, and then answers are scored.

"""

from __future__ import annotations

import argparse
import importlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.engines import Engines
from bench.measure import Verdict, interleaved, machine, report, seconds
from bench.peers import save_ctranslate2
from bench.sentences import sentence_pairs
from bench.speed_models import SpeedModel, Workload
from export.bundle.directory import load_bundle, load_shortlist
from export.bundle.manifest import SHORTLIST, TOKENIZER, Shortlist
from export.passes.quantization_scheme import SCHEMES
from model.tokenizer import Tokenizer
from service.machine.execution_choice import SINGLE_ENGINE_MIN_BYTES
from service.options import DecodingOptions
from service.request import Request
from service.runtime.runner import OnnxModel
from service.settings.engine_settings import Precision

ROWS, BATCH = 64, 64
COUNTS = {"alone": 20, "offline": 256, "beam": 96}
TARGETS = 14  # random words of each source token: 20 of them and their words are 256 or more
Words = Sequence[tuple[int, ...]]


class Ours:
    """Engines over one bundle, in this process."""

    def __init__(self, bundle: Path, precision: Precision) -> None:
        self.manifest, self.tokenizer = load_bundle(bundle), Tokenizer.load(bundle / TOKENIZER)
        processors = machine()["processors"]
        self.model = OnnxModel.open(
            bundle,
            self.manifest,
            device="cpu",
            precision=precision,
            single_engine_threads=processors,
            single_engine_min_bytes=SINGLE_ENGINE_MIN_BYTES,
        )
        runners = [self.model.runner(max_rows=ROWS) for _ in range(processors)]
        self.engines = Engines(runners, self.tokenizer)

    def answers(self, work: Workload, words: Words, *, beam: int, is_alone: bool) -> list[str]:
        requests = [
            Request(
                request_id=str(number),
                source=source,
                prompt=self.manifest.golden.prompt,
                max_tokens=work.max_tokens,
                options=DecodingOptions(beam_size=beam),
                shortlist=words[number] if words else (),
                is_streamed=False,
            )
            for number, source in enumerate(work.sources)
        ]
        return [answer.text for answer in self.engines.answer(requests, singly=is_alone)]


class Theirs:
    """CTranslate2 over the same weights, with the same shortlist."""

    def __init__(self, model: SpeedModel, kind: str, shortlist: Shortlist) -> None:
        path = model.path / f"ctranslate2-{kind}-map"
        if not path.exists():
            save_ctranslate2(model.model, path, kind)
        lines = ["\t" + " ".join(map(str, shortlist.always))]
        lines += [f"{token}\t{' '.join(map(str, (token, *targets)))}" for token, targets in shortlist.by_source.items()]
        (path / "vmap.txt").write_text("\n".join(lines) + "\n")
        library, processors = importlib.import_module("ctranslate2"), machine()["processors"]
        shapes = {"many": (processors, 1), "alone": (1, 1), "alone, all cores": (1, processors)}
        self.translators = {
            name: library.Translator(
                str(path), device="cpu", compute_type=kind, inter_threads=inter, intra_threads=intra
            )
            for name, (inter, intra) in shapes.items()
        }

    def answers(self, name: str, work: Workload, *, beam: int, with_map: bool) -> list[list[int]]:
        texts = [[str(token) for token in source] for source in work.sources]
        batches = [texts] if name == "many" else [[text] for text in texts]
        result = []
        for batch in batches:
            result += self.translators[name].translate_batch(
                batch,
                beam_size=beam,
                max_decoding_length=work.max_tokens,
                min_decoding_length=work.max_tokens if work.is_exact else 1,
                max_batch_size=BATCH if name == "many" else 1,
                max_input_length=0,
                use_vmap=with_map,
            )
        return [[int(token) for token in answer.hypotheses[0]] for answer in result]


def random_shortlist(vocab_size: int) -> Shortlist:
    draw = random.Random(11)
    words = range(4, vocab_size)
    return Shortlist(always=(), by_source={token: tuple(draw.sample(words, TARGETS)) for token in words})


def words_of(shortlist: Shortlist, work: Workload, ends: tuple[int, ...]) -> Words:
    """Of each source; an end is among them unless answers have a length that is given."""
    of_each = [shortlist.allowed(source) for source in work.sources]
    return [tuple(sorted(own.difference(ends) if work.is_exact else own.union(ends))) for own in of_each]


def jobs_of(
    part: str, ours: Ours, theirs: Theirs, work: Workload, words: Words, answers: dict[str, Any]
) -> dict[str, Callable[[], float]]:
    """The jobs that take turns; each returns sentences per second and stores its answers."""
    beam, is_alone = 4 if part == "beam" else 1, part == "alone"

    def timed(name: str, run: Callable[[], Any]) -> Callable[[], float]:
        def job() -> float:
            return len(work.sources) / seconds(lambda: answers.__setitem__(name, run()))

        return job

    jobs = {}
    for label, own in (("all words", ()), ("shortlist", words)):
        name = f"Glossa, {label}"
        jobs[name] = timed(name, lambda own=own: ours.answers(work, own, beam=beam, is_alone=is_alone))  # type: ignore[misc]
        for shape in ("alone", "alone, all cores") if is_alone else ("many",):
            name = f"CTranslate2, {label}" + (f", {shape}" if is_alone else "")
            jobs[name] = timed(
                name,
                lambda shape=shape, own=own: theirs.answers(shape, work, beam=beam, with_map=bool(own)),  # type: ignore[misc]
            )
    return jobs


def bleu(answers: Sequence[str], references: Sequence[str]) -> float:
    return float(importlib.import_module("sacrebleu").corpus_bleu(answers, [references]).score)


@case(
    scheme=Flag("w8a8-static-kv8", choices=sorted(set(SCHEMES) - {"fp16"})),
    parts=Flag(list(COUNTS), choices=sorted(COUNTS)),
    bundle=Path,
    precision=Flag("int8", choices=["fp32", "int8", "int4"]),
    checkpoint=Path,
    data=Path,
    count=Flag(type=int),
    repetitions=5,
)
def compare_shortlist(args: argparse.Namespace) -> None:
    if (args.bundle is None) != (args.checkpoint is None):
        raise SystemExit("--bundle and --checkpoint: give both or neither; CTranslate2 needs the same weights")
    model = SpeedModel(checkpoint=args.checkpoint, data=args.data)
    precision: Precision = args.precision
    if args.bundle is None:
        own = SCHEMES[args.scheme].precision
        precision, shortlist = "auto" if own == "fp16" else own, random_shortlist(model.model.config.vocab_size)
        bundle = model.bundle(args.scheme, shortlist=shortlist)
    else:
        bundle = args.bundle
        shortlist = load_shortlist(bundle / SHORTLIST)
    theirs = Theirs(model, "float32" if precision == "fp32" else "int8", shortlist)
    figures: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    ours = Ours(bundle, precision)
    with ours.engines:
        for part in args.parts:
            work = model.sentences(args.count or COUNTS[part])
            words = words_of(shortlist, work, ours.manifest.tokens.ends)
            answers: dict[str, Any] = {}
            found = interleaved(jobs_of(part, ours, theirs, work, words, answers), args.repetitions)
            figures |= {f"{part}: {name}, sentences/s": spread for name, spread in found.items()}
            best = {
                label: max(spread.median for name, spread in found.items() if name.startswith(f"CTranslate2, {label}"))
                for label in ("all words", "shortlist")
            }
            mine = {label: found[f"Glossa, {label}"].median for label in best}
            figures[f"{part}: words of a source"] = sum(map(len, words)) / len(words)
            figures[f"{part}: shortlist over all words, Glossa"] = mine["shortlist"] / mine["all words"]
            figures[f"{part}: shortlist over all words, CTranslate2"] = best["shortlist"] / best["all words"]
            verdicts.append(
                Verdict(
                    f"{part}, shortlist: Glossa over CTranslate2's best", mine["shortlist"] / best["shortlist"], 1.0
                )
            )
            if args.data is not None and not work.is_exact:
                references = [target for _, target in sentence_pairs(args.data, len(work.sources))]
                for name, result in answers.items():
                    texts = [one if isinstance(one, str) else ours.tokenizer.decode(one) for one in result]
                    figures[f"{part}: {name}, BLEU"] = bleu(texts, references)
    report(figures, verdicts, as_json=args.json)
