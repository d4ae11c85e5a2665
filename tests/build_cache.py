"""Exported bundles and traced graphs that several tests read: built once per run, shared by all processes of the run.

A key is the content that determines the result: the model's configuration and weights, the tokenizer, the arguments.
Tests must not change what they get. Nothing is kept from one run to the next.
"""

import fcntl
import functools
import hashlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from onnx import ModelProto

from tests.tiny import TEXTS, tiny_tokenizer


class BuildCache:
    """root: a directory that all processes of the run share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loaded: dict[str, Any] = {}

    def once(self, build: Callable[[Path], Any], *key: Any) -> Any:
        """Returns what `build` returned for this key, called at most once in the run with a directory of its own.

        The key must determine the result; its parts must have a repr that does, models and tokenizers excepted. The
        result must be picklable. Other processes wait for the one that builds; when it fails, the next one builds.
        """
        name = "-".join((build.__name__, _digest(key)))
        if name not in self._loaded:
            directory = self._root / name
            with Path(f"{directory}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                result = Path(f"{directory}.pickle")
                if not result.exists():
                    directory.mkdir(exist_ok=True)
                    result.write_bytes(pickle.dumps(build(directory)))
                self._loaded[name] = pickle.loads(result.read_bytes())
        return self._loaded[name]

    def exported(self, model, tokenizer=None, *, texts=TEXTS, **options) -> Path:
        """Path of the verified bundle of a model. options: of `ExportOptions`."""
        from export.options import ExportOptions
        from export.to_onnx import export_model  # torch: only for tests that need a bundle

        tokenizer, chosen = tokenizer or tiny_tokenizer(), ExportOptions(texts=texts, **options)

        def bundle(directory):
            export_model(model, tokenizer, directory / "bundle", chosen)
            return str(directory / "bundle")

        return Path(self.once(bundle, model, tokenizer, chosen))


def _digest(parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        if hasattr(part, "state_dict"):
            found.update(json.dumps(part.config.to_json(), sort_keys=True).encode())
            for name, tensor in part.state_dict().items():
                found.update(name.encode() + tensor.detach().numpy().tobytes())
        elif hasattr(part, "to_json"):
            found.update(str(part.to_json()).encode())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]


def trace_once(cache: BuildCache) -> None:
    """Makes `torch.onnx.export` trace each distinct module once per run.

    Most of what an export takes is tracing, and many tests export the same small model for different ends. A module
    that cannot be pickled, such as one of a class inside a test, is traced every time. `torch.onnx.export.__wrapped__`
    is the original.
    """
    real = torch.onnx.export

    @functools.wraps(real)
    def export(module, arguments, **options):
        def trace(_):
            program: Any = real(module, arguments, **options)
            return program.model_proto.SerializeToString()

        try:
            key = _content(module, arguments, repr(options))
        except (pickle.PicklingError, AttributeError, TypeError):
            return real(module, arguments, **options)
        return Traced(ModelProto.FromString(cache.once(trace, key)))

    torch.onnx.export = export  # type: ignore[assignment]


class Traced(NamedTuple):
    """The part of torch's ONNXProgram that exports read."""

    model_proto: ModelProto


class _Contents(pickle.Pickler):
    """Pickles tensors as their values, and which of them share memory: tied weights make another graph."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, int] = {}

    def persistent_id(self, value):
        if not isinstance(value, torch.Tensor):
            return None
        place = self._storages.setdefault(value.data_ptr(), len(self._storages))
        values = hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
        return str(value.dtype), tuple(value.shape), value.stride(), type(value).__name__, place, values


def _content(*values: Any) -> str:
    """A digest of what values hold, the same in every process."""
    file = io.BytesIO()
    _Contents(file).dump(values)
    return hashlib.sha256(file.getvalue()).hexdigest()
