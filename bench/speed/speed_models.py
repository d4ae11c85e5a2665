"""The models of speed comparisons: the same weights for all engines, built once and cached.

One is trained (any checkpoint); the other is `bench.speed.random_model`, in the 6+6-layer shape of the tables.

The cache directory is keyed by the digest of the sources that built the models, so a changed exporter is never
measured with old graphs.

"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.case import Flag, case
from bench.sentences import sentence_pairs
from bench.speed.peers import save_ctranslate2
from bench.speed.random_model import ENDLESS, LONGEST, SHORTEST, random_model, random_source
from bench.speed.unverified_bundle import random_tokenizer, save_unverified
from export.bundle.manifest import TOKENIZER
from export.variants import Traced, trace_model
from model.checkpoints.checkpoint import load_checkpoint, save_checkpoint, weights_of
from model.config import TrainConfig
from model.tokenizer import Tokenizer
from model.transformer import EncoderDecoder

CACHE = Path("runs/bench")
SOURCE_TOKENS, TARGET_TOKENS = 20, 30
LONGEST_REAL = 100  # tokens of an answer to a real sentence; none of the Tatoeba model comes near
CALIBRATED = 64  # sentences that static schemes are calibrated on
SOURCES = ("export", "model")  # packages that make bundles
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Workload:
    """Sentences as ids, end token included, and how many tokens an answer has at most."""

    sources: tuple[tuple[int, ...], ...]
    max_tokens: int
    is_exact: bool  # every answer has max_tokens tokens

    def save(self, file: Path) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)))
        return file

    @classmethod
    def load(cls, file: Path) -> Workload:
        values = json.loads(file.read_text())
        return cls(tuple(map(tuple, values["sources"])), values["max_tokens"], values["is_exact"])


class SpeedModel:
    """One set of weights in the forms that engines read; each is built when it is asked for the first time."""

    def __init__(self, cache: Path = CACHE, checkpoint: Path | None = None, data: Path | None = None) -> None:
        """checkpoint: None: the random model. data: TSV of sentence pairs; None: the embedded corpus."""
        self.is_random, self._data = checkpoint is None, data
        digest = _digest([ROOT / "model", ROOT / "bench/speed/random_model.py"])
        self.checkpoint = checkpoint or cache / f"random-{digest}"
        if checkpoint is None and not self.checkpoint.exists():
            _save_random(self.checkpoint)
        self.path = cache / self.checkpoint.name if checkpoint else self.checkpoint

    @functools.cached_property
    def model(self) -> EncoderDecoder:
        found = load_checkpoint(self.checkpoint).model
        assert isinstance(found, EncoderDecoder), "only models with an encoder are compared"
        return found

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.checkpoint / TOKENIZER)

    @functools.cached_property
    def _traced(self) -> Traced:
        return trace_model(self.model)

    def bundle(self, form: str) -> Path:
        """A bundle with graphs of one form, not verified: that is the exporter's business, and takes minutes."""
        path = self.path / f"{form}-{_digest([ROOT / source for source in SOURCES])}.bundle"
        if not path.exists():
            for stale in self.path.glob(f"{form}-*.bundle"):
                shutil.rmtree(stale)
            save_unverified(
                path,
                self.model,
                self.tokenizer,
                form,
                source=self.sentences(1).sources[0],
                samples=self._samples,
                traced=self._traced,
            )
        return path

    def ctranslate2(self, kind: str) -> Path:
        """A directory that CTranslate2 reads. kind: float32 or int8."""
        path = self.path / f"ctranslate2-{kind}-{_digest([ROOT / 'bench/speed/peers.py'])}"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            save_ctranslate2(self.model, unfinished, kind)
            unfinished.rename(path)
        return path

    def sentences(self, count: int) -> Workload:
        """Real sentences; of the random model, SOURCE_TOKENS tokens each, for TARGET_TOKENS."""
        if self.is_random:
            rng, config = random.Random(3), self.model.config
            sources = (random_source(config, rng, SOURCE_TOKENS, ENDLESS) for _ in range(count))
            return Workload(tuple(sources), TARGET_TOKENS, is_exact=True)
        texts = [source for source, _ in sentence_pairs(self._data, count)]
        return Workload(self._encoded(texts), LONGEST_REAL, is_exact=False)

    def mixed(self, count: int) -> Workload:
        """Sentences of SHORTEST to LONGEST tokens with answers about as long, every length alike."""
        rng = random.Random(4)
        lengths = [rng.randint(SHORTEST, LONGEST) for _ in range(count)]
        if self.is_random:
            sources = tuple(random_source(self.model.config, rng, length, length) for length in lengths)
            return Workload(sources, 2 * LONGEST, is_exact=False)
        pairs = sentence_pairs(self._data, 100_000)
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for source in self._encoded([source for source, _ in pairs]):
            by_length.setdefault(len(source), []).append(source)
        there = sorted(length for length in by_length if SHORTEST <= length <= LONGEST)
        sources = tuple(rng.choice(by_length[min(there, key=lambda known: abs(known - wanted))]) for wanted in lengths)
        return Workload(sources, LONGEST_REAL, is_exact=False)

    def texts(self, work: Workload) -> list[str]:
        """The sentences as texts, as clients send them."""
        return [self.tokenizer.decode(list(source[:-1])) for source in work.sources]

    def _encoded(self, texts: list[str]) -> tuple[tuple[int, ...], ...]:
        eos = self.model.config.eos_id
        return tuple((*ids, eos) for ids in self.tokenizer.encode_batch(texts))

    def _samples(self) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Sources and targets to calibrate on; random ones for the random model, whose answers repeat themselves."""
        bos, sources = self.model.config.bos_id, self.sentences(CALIBRATED).sources
        if self.is_random:
            targets = [source[:-1] for source in reversed(sources)]
        else:
            texts = [target for _, target in sentence_pairs(self._data, CALIBRATED)]
            targets = [tuple(ids) for ids in self.tokenizer.encode_batch(texts)]
        return [(source, (bos, *target)) for source, target in zip(sources, targets, strict=True)]


def _save_random(path: Path) -> None:
    model = random_model()
    tokenizer = random_tokenizer(model.config.vocab_size)
    weights, train = weights_of(model), TrainConfig(steps=1)
    save_checkpoint(path, model.config, weights, tokenizer=tokenizer, train=train, metrics={}, lineage={})


def _digest(paths: Iterable[Path]) -> str:
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


MODEL_OPTIONS = {
    "cache": Flag(CACHE, "cache directory of built models"),
    "checkpoint": Flag(Path, "trained model instead of the random one"),
    "data": Flag(Path, "TSV of sentence pairs for it; the embedded corpus if not given"),
}
"""The flags that `chosen_model` reads."""


def chosen_model(options: argparse.Namespace) -> SpeedModel:
    return SpeedModel(options.cache, options.checkpoint, options.data)


@case(**MODEL_OPTIONS, scheme=["fp32"], peers=Flag(False, help="also build the models for CTranslate2"))
def speed_models(options: argparse.Namespace) -> None:
    model = chosen_model(options)
    for form in options.scheme:
        print(model.bundle(form))
    for kind in ("float32", "int8") if options.peers else ():
        print(model.ctranslate2(kind))
