"""`glossa import`: a model in the format of Hugging Face, a directory or one of the Hub by its name, or in a GGUF file,
to a checkpoint. The work is `model.pretrained`'s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.flags import SourceUnitName
from cli.terminal import AsJson, UsageError, report_errors, show

if TYPE_CHECKING:
    from model.pretrained.files import Stored, Weights
    from model.pretrained.import_checkpoint import ImportedCheckpoint
    from model.pretrained.peft_adapter import PeftAdapter


TranslateAs = Annotated[
    str | None,
    typer.Option(
        help="how a model without an encoder is asked to translate: eurollm, few-shot, gemmax2, hunyuan-mt, "
        "tower-plus, translategemma, or a file NAME.toml in their form"
    ),
]


def import_(
    model: Annotated[
        str,
        typer.Argument(
            help="directory that save_pretrained of Hugging Face wrote, the name of a model of the Hub, OWNER/NAME, "
            "a GGUF file, a model of Marian (.npz, .bin, or its directory), or the directory of a PEFT adapter"
        ),
    ],
    checkpoint: Annotated[Path, typer.Argument(help="checkpoint directory to write")],
    revision: Annotated[
        str | None, typer.Option(help="branch, tag or commit of a model of the Hub; default: main")
    ] = None,
    is_offline: Annotated[
        bool, typer.Option("--offline", help="take a model of the Hub from the cache alone, as with HF_HUB_OFFLINE")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="longest context to keep, in tokens; default: the model's, at most 4096", min=1)
    ] = None,
    eos_id: Annotated[
        int | None,
        typer.Option(help="only token that ends an answer; default: all that the model's files name", min=0),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option("--allow-pickle", help="read pytorch_model.bin of a directory where there are no safetensors"),
    ] = False,
    source_unit: SourceUnitName = None,
    translate_as: TranslateAs = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace an existing checkpoint")] = False,
    as_json: AsJson = False,
) -> None:
    """Import a model of Hugging Face, llama.cpp or Marian as a checkpoint, which can be exported and served."""
    from model.checkpoints.atomic_write import new_directory
    from model.checkpoints.checkpoint import CheckpointError, check_new
    from model.pretrained.convert_tokenizer import convert_tokenizer
    from model.pretrained.files import PretrainedError
    from model.pretrained.import_checkpoint import MAX_LENGTH, import_checkpoint
    from model.pretrained.translators import translator

    with report_errors(PretrainedError, CheckpointError):
        translation = translator(translate_as) if translate_as else None
        (check_replaced if replace else check_new)(checkpoint)  # before anything is fetched
        with (
            opened(model, revision, is_offline=is_offline, allow_pickle=allow_pickle, eos_id=eos_id) as source,
            new_directory(checkpoint, replace=replace) as written,
        ):
            imported = import_checkpoint(
                source.directory,
                written,
                convert_tokenizer(source.directory),
                allow_pickle=allow_pickle,
                max_length=max_length or MAX_LENGTH,
                eos_id=eos_id,
                source_unit=source_unit,
                translation=translation,
                origin=source.origin,
                stored=source.stored,
            )
    show(imported_figures(imported), as_json)


class Source(NamedTuple):
    """A directory as `import_checkpoint` takes it. origin: where it comes from; None: it is the original. stored: its
    weights, if they are elsewhere."""

    directory: Path
    origin: Mapping[str, str] | None = None
    stored: Stored | None = None


@contextlib.contextmanager
def opened(
    model: str, revision: str | None, *, is_offline: bool, allow_pickle: bool, eos_id: int | None
) -> Iterator[Source]:
    """The model in a directory, in a file of llama.cpp or Marian, or of the Hub, or the base of an adapter with it.
    Raises UsageError and PretrainedError."""
    from model.pretrained.files import check_folder
    from model.pretrained.gguf.file import is_gguf
    from model.pretrained.gguf.folder import as_folder
    from model.pretrained.marian.folder import as_folder as marian_folder
    from model.pretrained.marian.folder import is_marian
    from model.pretrained.peft_adapter import ADAPTER_CONFIG, is_adapter, read_adapter

    path = Path(model)
    is_file = is_gguf(path) or (is_marian(path) and not path.is_dir())
    if is_adapter(path):
        if revision is not None:
            raise UsageError(f"--revision {revision}: {model} is an adapter, whose {ADAPTER_CONFIG} has it; remove it")
        adapter = read_adapter(path)
        with opened(
            adapter.base, adapter.revision, is_offline=is_offline, allow_pickle=allow_pickle, eos_id=eos_id
        ) as base:
            yield with_adapter(base, adapter, allow_pickle=allow_pickle)
        return
    if revision is not None and (is_file or path.is_dir()):
        what = "file" if is_file else "directory"
        raise UsageError(f"--revision {revision}: {model} is a {what}, which has no revisions; remove it")
    if is_marian(path):
        with marian_folder(path) as (directory, stored):
            yield Source(directory, stored.origin, stored)
    elif path.is_dir():
        check_folder(path)
        yield Source(path)
    elif is_file:
        with as_folder(path) as (directory, stored):
            yield Source(directory, stored.origin, stored)
    else:
        yield Source(*fetched(model, revision, is_offline=is_offline, allow_pickle=allow_pickle, eos_id=eos_id))


def with_adapter(base: Source, adapter: PeftAdapter, *, allow_pickle: bool) -> Source:
    """The base of an adapter, with its weights merged."""
    from model.pretrained.files import Stored, load_weights, weight_files

    def load() -> Weights:
        own = base.stored.load() if base.stored else load_weights(base.directory, allow_pickle=allow_pickle)
        return adapter.merged(own)

    files = base.stored.files if base.stored else tuple(weight_files(base.directory))
    origin = dict(base.origin or {"imported_from": base.directory.resolve().name})
    origin["adapter"] = adapter.folder.resolve().name
    return Source(base.directory, origin, Stored(files=(*files, *adapter.files), origin=origin, load=load))


def fetched(
    model: str, revision: str | None, *, is_offline: bool, allow_pickle: bool, eos_id: int | None = None
) -> tuple[Path, Mapping[str, str]]:
    """The files of a model of the Hub, and where they come from. eos_id: the only end-of-sequence token.

    Raises UsageError and PretrainedError.
    """
    from model.pretrained.convert_tokenizer import convert_tokenizer
    from model.pretrained.hub import MAIN, NAME, Hub
    from model.pretrained.import_checkpoint import check_configuration, check_vocabulary

    def check(directory: Path) -> None:
        check_configuration(directory, eos_id=eos_id)
        check_vocabulary(directory, convert_tokenizer(directory))  # seconds, where weights take minutes to hours

    if not NAME.fullmatch(model) or Path(model).exists():
        what = "is no directory" if Path(model).exists() else "no such directory"
        fix = "give one that save_pretrained has written, or the name of a model of the Hugging Face Hub, OWNER/NAME"
        raise UsageError(f"{model}: {what}; {fix}")
    if allow_pickle:
        raise UsageError(f"--allow-pickle: of {model}, a model of the Hub, safetensors are read alone; remove it")
    asked = revision or MAIN
    snapshot = Hub().snapshot(model, asked, is_offline=is_offline, check=check)
    return snapshot.directory, {"imported_from": model, "revision": snapshot.commit, "requested_revision": asked}


def check_replaced(checkpoint: Path) -> None:
    """Raises UsageError if a path is taken by something that is no checkpoint."""
    from model.checkpoints.atomic_write import DIGESTS

    if checkpoint.exists() and not (checkpoint / DIGESTS).is_file():
        raise UsageError(f"{checkpoint}: is not a checkpoint, so --replace leaves it alone; choose another directory")


def imported_figures(imported: ImportedCheckpoint) -> dict[str, Any]:
    """What `import` prints about a model."""
    from model.architecture_config import EncoderConfig, TransformerConfig

    config = imported.config

    def of(ours: int, theirs: int) -> str:
        return f"{ours}" if ours == theirs else f"{ours} of {theirs}"

    notes: dict[str, Any] = {}
    if "tensor_types" in imported.lineage:
        notes["stored as"] = imported.lineage["tensor_types"]
    if "left_out" in imported.lineage:
        notes["left out"] = imported.lineage["left_out"]
    if isinstance(config, TransformerConfig) and config.rotary_scaling == "longrope" and config.is_stretched:
        original = config.rotary_original_len
        notes["angles"] = f"of long contexts for every text; --max-length {original} takes those of short ones"
    if imported.options:
        notes["left to requests"] = [f"{name} {value}" for name, value in imported.options.items()]
    if imported.chat.template is not None:
        notes["chat template"] = "yes"
    if imported.translation is not None:
        notes["translates as"] = f"{imported.translation.name}, {len(imported.translation.languages)} languages"
    if imported.chat.others:
        notes["templates left out"] = [*imported.chat.others]
    if imported.unknown:
        notes["unknown fields"] = [*imported.unknown]
    figures = {
        "model_type": imported.lineage["model_type"],
        "parameters": imported.parameters,
        "vocabulary": config.vocab_size,
    }
    if config.source_vocab_size:
        figures["vocabulary of sources"] = config.source_vocab_size
    if config.has_decoder:
        figures["context"] = of(config.max_target_len, imported.max_target_len)
    if config.has_encoder:
        figures["source"] = of(config.max_source_len, imported.max_source_len)
    if config.has_encoder and config.has_decoder:
        figures["source_unit"] = config.source_unit
    if isinstance(config, EncoderConfig):
        heads = {
            "masked": "fills masks",
            "classify": f"{len(config.labels)} labels",
            "tokens": f"{len(config.labels)} token labels",
        }
        dense = [f"dense {layer.size} {layer.activation}" for layer in config.dense]
        vector = ", ".join([config.pooling, *dense, *(["normalized"] if config.normalized else [])])
        head: dict[str, Any] = {"head": heads.get(config.head, "none"), "vector": vector}
        if config.prompts:
            head["prompts"] = [name for name, _ in config.prompts]
        if config.default_prompt:
            head["default prompt"] = config.default_prompt
        return {**figures, "frame": [*config.template.token_ids], **head, **notes}
    return {**figures, "begins": list(config.template.target_prefix), "ends": list(config.eos_ids), **notes}
