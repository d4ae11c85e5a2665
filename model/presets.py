"""Complete configurations under a name (`PRESETS`, from presets.yaml), those in YAML files (`load_preset`), and those
that continue a checkpoint (`continuing`)."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml

from model.architecture_config import model_config
from model.config import ConfigError, ModelConfig, TrainConfig, check, unknown_key
from model.fine_tuning import FineTuning

Embedded = Literal[
    "",
    "pairs",
    "scenes",
    "copy",
    "kinds",
    "entities",
    "animals",
    "references",
    "article-ends",
    "article-halves",
    "articles",
]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model and its training under one name. `embedded`: the corpus it trains on when no data is given."""

    description: str
    model: ModelConfig
    train: TrainConfig
    embedded: Embedded = ""
    fine_tuning: FineTuning = field(default_factory=FineTuning)
    new_head: bool = False  # of `continuing`: the model's head is not the base's

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """A preset from a YAML file: `preset: NAME` to start from, and what differs under `model`, `train` and
        `fine_tuning`.

        Raises ConfigError.
        """
        model, train, fine_tuning = _parts(values, ("preset", "description", "embedded"))
        base = find_preset(str(values["preset"])) if "preset" in values else None
        if {"steps", "minutes"} & set(train) and base is not None:
            train = {"steps": 0, "minutes": 0.0, **train}  # either one replaces the base's
        embedded = values.get("embedded", base.embedded if base else "")
        kinds = get_args(Embedded)
        check(embedded in kinds, "embedded", f"must be one of {', '.join(filter(None, kinds))}, got {embedded!r}")
        return cls(
            description=values.get("description", base.description if base else ""),
            model=base.model.replace(**model) if base else model_config(model),
            train=base.train.replace(**train) if base else TrainConfig.from_json(train),
            embedded=embedded,
            fine_tuning=FineTuning.from_json(fine_tuning),
        )


def _parts(values: Mapping[str, Any], others: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """`model`, `train` and `fine_tuning` of a YAML file, {} where one is missing. others: the further keys it may have.
    Raises ConfigError."""
    names = ("model", "train", "fine_tuning")
    known = (*others, *names)
    for key in values:
        check(key in known, str(key), unknown_key(str(key), known))
    parts = tuple(values.get(name) or {} for name in names)
    for name, part in zip(names, parts, strict=True):
        check(isinstance(part, Mapping), name, f"must be a mapping, got {part!r}")
        for key in part:
            check(isinstance(key, str), name, f"a name must be a text, got {key!r}; put it in quotes")
    return parts


def _built_in() -> dict[str, Preset]:
    values = yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8"))
    return {name: Preset.from_json(preset) for name, preset in values.items() if not name.startswith("_")}


PRESETS: Mapping[str, Preset] = _built_in()


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises ConfigError, which suggests the closest name and lists all of them."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = f"Presets: {', '.join(PRESETS)}; or give a file that ends in .yaml"
        raise ConfigError("preset", f"unknown preset {name!r}; {hint}{known}")
    return PRESETS[name]


def load_preset(name_or_file: str) -> Preset:
    """A preset by name, or from a YAML file (`Preset.from_json`). Raises ConfigError, OSError."""
    if not is_file(name_or_file):
        return find_preset(name_or_file)
    with _of_file(name_or_file):
        return Preset.from_json(_read(name_or_file))


@contextlib.contextmanager
def _of_file(name: str | None, others: Container[str] = ()) -> Iterator[None]:
    """Adds the name of a file, if there is one, to an error about one of its fields. others: fields not of the file."""
    try:
        yield
    except ConfigError as error:
        if name is None or error.field == name or error.field in others:
            raise
        raise ConfigError(f"{name}: {error.field}", error.problem) from None


def is_file(name_or_file: str) -> bool:
    """Whether this names a YAML file, not a preset."""
    return name_or_file.endswith((".yaml", ".yml"))


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as YAML 1.2 does; to YAML 1.1 it is a text unless it has a point and a sign."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _read(name_or_file: str) -> dict[str, Any]:
    try:
        values = yaml.load(Path(name_or_file).read_text(encoding="utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise ConfigError(name_or_file, f"must be UTF-8, byte {error.start} is not; convert it") from None
    except yaml.YAMLError as error:
        raise ConfigError(name_or_file, f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(name_or_file, f"must be a mapping with model and train, got {type(values).__name__}")
    return values


CONTINUED = TrainConfig(  # a small rate, because the weights are good already (Devlin et al. 2019 use 2e-5 to 5e-5)
    steps=1000, learning_rate=1e-4, warmup_steps=50, save_every_steps=100, validate_every_steps=100
)
# Fields that neither change the shape of a parameter nor what a weight means.
FREE = frozenset({"dropout", "max_source_len", "max_target_len", "sliding_window"})
SCALING = frozenset(f"rotary_{name}" for name in ("scaling", "factor", "low_freq", "high_freq", "original_len"))
OF_HEAD = frozenset({"head", "pooler", "labels", "multi_label", "mask_id"})


def continuing(base: ModelConfig, name_or_file: str | None = None, *, head: str | None = None) -> Preset:
    """The preset that continues a checkpoint with this configuration, in which a YAML file may change some fields.

    head: trains a new head of this kind, whose labels come from the data, also where the file names another; otherwise
    the model keeps its own. Without a length in the file, training takes 1,000 steps. Raises ConfigError, also for a
    field that must be the base's.
    """
    if name_or_file is not None and not is_file(name_or_file):
        raise ConfigError(
            "preset", f"with --from, give a YAML file or nothing: the base is the model; got {name_or_file!r}"
        )
    values = _read(name_or_file) if name_or_file else {}
    with _of_file(name_or_file, ("head",) if head else ()):
        model, train, fine_tuning = _parts(values, ("description",))
        head = head or (str(model["head"]) if "head" in model else None)
        for name in ("tokenizer", "vocab_size"):
            check(name not in train, name, "is that of the base; leave it out of train")
        if {"steps", "minutes"} & set(train):
            train = {"steps": 0, "minutes": 0.0, **train}
        return Preset(
            description=str(values.get("description", "")),
            model=_continued(base, model, head),
            train=CONTINUED.replace(**train),
            fine_tuning=FineTuning.from_json(fine_tuning),
            new_head=head is not None,
        )


def _continued(base: ModelConfig, changes: Mapping[str, Any], head: str | None) -> ModelConfig:
    known = base.to_json()
    free = FREE | SCALING | (OF_HEAD if head else frozenset())
    for name, value in changes.items():
        if name in known and name not in free and not _equal(value, known[name]):
            fix = "leave it out, or train from scratch"
            if name in OF_HEAD:
                fix = "leave it out, or give a head to train a new one"
            raise ConfigError(name, f"must be the base's {known[name]!r}, got {value!r}; {fix}")
    if head and base.architecture != "encoder":
        raise ConfigError("head", f"goes with an encoder alone; the base is of architecture {base.architecture}")
    new_head = {"head": head, "labels": (), "multi_label": False} if head else {}
    return base.replace(**{**new_head, **changes, **({"head": head} if head else {})})


def _equal(value: Any, known: Any) -> bool:
    """Whether a value from YAML is that of a field; tuples are lists there."""
    return bool(value == (list(known) if isinstance(known, tuple) else known))
