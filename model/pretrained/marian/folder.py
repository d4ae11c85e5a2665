"""A model of Marian as the directory of a Hugging Face model, which `model.pretrained` reads like any other.

Its files are those of a release: a model (`.npz` or `.bin`), its SentencePiece vocabularies, and maybe a binary
shortlist and the options of a decoder (`.yml`), which name the others.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.checkpoints.atomic_write import DIGESTS
from model.checkpoints.checkpoint import SHORTLIST
from model.pretrained.convert_tokenizer import sentencepiece_values
from model.pretrained.files import CONFIG, GENERATION_CONFIG, TOKENIZER, Fields, PretrainedError, Stored
from model.pretrained.marian.items import OPTIONS, Items, read_items
from model.pretrained.marian.model import MODEL_TYPE, marian_tensors
from model.pretrained.marian.options import read_yaml
from model.pretrained.marian.shortlist import is_shortlist, read_shortlist
from model.pretrained.sentencepiece_model import UNKNOWN, read_sentencepiece
from model.pretrained.tokenizer_files import AddedToken
from model.tokenizer import OWN_TARGET, TokenizerError

MODELS, VOCABULARY, PAD = (".npz", ".bin"), ".spm", "<pad>"
SETTINGS = {"beam-size": "num_beams", "normalize": "length_penalty"}  # which each request has for itself
NO_EFFECT = (  # of a decoder's options: threads, batches, forms of output, and lengths, which each request limits
    *("alignment", "cpu-threads", "gemm-precision", "log", "max-length", "max-length-crop", "max-length-factor"),
    *("maxi-batch", "maxi-batch-sort", "mini-batch", "mini-batch-words", "n-best", "quiet", "quiet-translation"),
    *("relative-paths", "skip-cost", "ssplit-mode", "version", "workspace"),
)


def is_marian(path: Path) -> bool:
    """Whether a path names a model of Marian, there or not, or a directory that holds one."""
    if not path.is_dir():
        return path.suffix in MODELS
    if (path / CONFIG).is_file() or (path / DIGESTS).is_file():
        return False
    return any(file.suffix in (".npz", VOCABULARY) for file in path.iterdir())


@contextlib.contextmanager
def as_folder(path: Path) -> Iterator[tuple[Path, Stored]]:
    """The directory with the model's configuration and tokenizer, and its weights, while the context lasts.

    path: the model's file, or the directory of it and of no other. Raises PretrainedError, and names the file in those
    of others that concern the directory.
    """
    model, options = _model_of(path)
    items = read_items(model)
    vocabularies, shortlist = _vocabularies_of(model.parent, options), _shortlist_of(model.parent, options)
    with tempfile.TemporaryDirectory(prefix="glossa-marian-") as name:
        folder = Path(name)
        try:
            sizes = _write(folder, items, vocabularies, options)
            extra = {} if shortlist is None else {SHORTLIST: read_shortlist(shortlist, *sizes)}
            yield (
                folder,
                Stored(
                    files=tuple(file for file in (model, *vocabularies, shortlist) if file is not None),
                    origin={"imported_from": model.name, "tensor_types": items.types},
                    load=lambda: marian_tensors(items.tensors),
                    extra=extra,
                ),
            )
        except PretrainedError as error:
            message = str(error).replace(f"{folder}/", "").replace(f"{CONFIG}: ", f"{OPTIONS}: ")
            raise PretrainedError(message if str(model.parent) in message else f"{model}: {message}") from error


def _model_of(path: Path) -> tuple[Path, Fields]:
    """The model's file and the decoder's options beside it."""
    folder = path if path.is_dir() else path.parent
    found = [path] if not path.is_dir() else []
    if not found:
        files = sorted(file for file in folder.iterdir() if file.suffix in MODELS and "optimizer" not in file.name)
        found = [file for file in files if not is_shortlist(file)]
    decoders = [(file, values) for file in sorted(folder.glob("*.yml")) if "models" in (values := _yaml(file))]
    named = {name: (file, values) for file, values in decoders for name in _names(values.get("models"))}
    if len(found) > 1 and (chosen := [file for file in found if file.name in named]):
        found = chosen
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise PretrainedError(f"{folder}: must hold one model, .npz or .bin, got {names}; give one by its own name")
    if not found[0].is_file():
        raise PretrainedError(f"{found[0]}: no such file; give a model of Marian, .npz or .bin, or its directory")
    file, values = named.get(found[0].name, (folder / "decoder.yml", {}))
    return found[0], Fields(values, file=str(file), read={"models"})


def _yaml(file: Path) -> Mapping[str, Any]:
    try:
        values = read_yaml(file.read_bytes())
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error!s:.200}") from error
    return values if isinstance(values, dict) else {}


def _names(value: Any) -> list[str]:
    """File names in an option that is one or a list."""
    values = value if isinstance(value, list) else [value]
    return [Path(name).name for name in values if isinstance(name, str)]


def _vocabularies_of(folder: Path, options: Fields) -> list[Path]:
    """The vocabulary of sources and targets, or one of each."""
    named = list(dict.fromkeys(_names(options.get("vocabs", []))))
    names = named or [file.name for file in folder.glob(f"*{VOCABULARY}")]
    if len(names) > 2 or (len(names) == 2 and not named):
        raise PretrainedError(
            f"{folder}: must have one vocabulary, or two whose order the vocabs of a decoder's options name, got "
            f"{', '.join(sorted(names))}; write models and vocabs into decoder.yml, the vocabulary of sources first"
        )
    if not names:
        raise PretrainedError(f"{folder}: holds no vocabulary; put the SentencePiece model, {VOCABULARY}, beside it")
    for name in names:
        if not (folder / name).is_file() or not name.endswith(VOCABULARY):
            problem = f"must be there, a SentencePiece model whose name ends in {VOCABULARY}"
            raise PretrainedError(f"{folder / name}: {problem}")
    return [folder / name for name in names]


def _shortlist_of(folder: Path, options: Fields) -> Path | None:
    names = _names(options.get("shortlist", []))[:1]
    found = [folder / name for name in names] or [
        file for file in sorted(folder.glob("*.bin")) if file.is_file() and is_shortlist(file)
    ]
    if len(found) > 1:
        raise PretrainedError(
            f"{folder}: must have one shortlist, got {', '.join(file.name for file in found)}; remove the others"
        )
    return found[0] if found else None


def _write(folder: Path, items: Items, vocabularies: Sequence[Path], options: Fields) -> tuple[int, int]:
    """Writes the small files; returns the numbers of tokens of the model's vocabularies, of sources and targets."""
    for name in NO_EFFECT:
        options.get(name, None)
    options.only("word-penalty", 0, default=0)
    allows_unknown = options.get("allow-unk", False)
    generation = {theirs: options.get(name, None) for name, theirs in SETTINGS.items()}
    if options.unread:
        raise options.refuse(options.unread[0], "it is an option that the import does not know; remove it")
    source_size, size = sizes = _sizes(items)
    is_separate = len(vocabularies) > 1
    if source_size != size and not is_separate:
        problem = f"must be two equal numbers with one vocabulary, {vocabularies[0].name}, got {[*sizes]}"
        raise PretrainedError(f"{OPTIONS}: dim-vocabs {problem}")
    values, eos, unknown = _tokenizer(vocabularies[-1], size)
    if is_separate:
        own, _, _ = _tokenizer(vocabularies[0], source_size)
        own["model"][OWN_TARGET] = {name: values[name] for name in ("normalizer", "model", "decoder", "added_tokens")}
        values = own
    config: dict[str, Any] = {
        **{name: value for name, value in items.options.items() if name != "dim-vocabs"},
        "model_type": MODEL_TYPE,
        "vocab_size": source_size + 1,
        "decoder_vocab_size": size + 1,
        "share_encoder_decoder_embeddings": not is_separate,
        "eos_id": eos,
        "unk_id": unknown,
        "pad_id": size,
        "never": [size, *([] if allows_unknown else [unknown])],
    }
    for name, content in ((CONFIG, config), (GENERATION_CONFIG, generation), (TOKENIZER, values)):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return sizes


def _sizes(items: Items) -> tuple[int, int]:
    sizes: Any = items.options.get("dim-vocabs")
    is_list = isinstance(sizes, Sequence) and len(sizes) == 2 and all(type(size) is int and size > 0 for size in sizes)
    if not is_list:
        raise PretrainedError(f"{OPTIONS}: dim-vocabs must be two numbers above 0, got {sizes!r:.80}")
    return sizes[0], sizes[1]


def _tokenizer(vocabulary: Path, size: int) -> tuple[dict[str, Any], int, int]:
    """The values of a tokenizer.json, the end-of-sequence token and the unknown one."""
    model = read_sentencepiece(vocabulary)
    ids = {piece.text: token for token, piece in enumerate(model.pieces)}
    if len(model.pieces) > size:
        raise PretrainedError(
            f"{vocabulary}: has {len(model.pieces)} pieces, the model {size}: it is of another model; give the "
            "vocabulary with which the model was trained"
        )
    if "</s>" not in ids:
        raise PretrainedError(f"{vocabulary}: must have a piece </s>, with which answers end")
    unused = [AddedToken(token, f"<unused {token}>") for token in range(len(model.pieces), size)]
    try:
        values = sentencepiece_values(model, ids, [*unused, AddedToken(size, PAD)])
    except TokenizerError as error:
        raise PretrainedError(f"{vocabulary}: {error}") from error
    return values, ids["</s>"], next(token for token, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
