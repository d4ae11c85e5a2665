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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir
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
    """Makes `torch.onnx.export` trace modules that differ only in the values of their weights once per run.

    Most of what an export takes is tracing. It sees the shapes of weights, not their values, so the graph before
    optimization holds for all of them; optimization folds weights, takes a twentieth of the time, and runs for each
    module. A module that cannot be pickled, such as one of a class inside a test, is traced every time.
    `torch.onnx.export.__wrapped__` is the original.
    """
    real = torch.onnx.export

    @functools.wraps(real)
    def export(module, arguments, **options):
        def trace(_):
            program: Any = real(module, arguments, optimize=False, **options)
            return program.model_proto.SerializeToString()

        weights = _weights(module)
        try:
            key = _content(weights, module, arguments, repr(options))
        except (pickle.PicklingError, AttributeError, TypeError):
            return real(module, arguments, **options)
        graph = onnx_ir.from_proto(ModelProto.FromString(cache.once(trace, key)))
        for name, value in graph.graph.initializers.items():
            if name in weights:
                value.const_value = onnx_ir.tensor(weights[name].detach().contiguous().numpy(), name=name)
        program = torch.onnx.ONNXProgram(graph, None)
        program.optimize()
        return program

    torch.onnx.export = export  # type: ignore[assignment]


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name that they have: the tensors that a trace takes for inputs."""
    buffers = module.named_buffers(remove_duplicate=False)
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(buffers)}


class _Contents(pickle.Pickler):
    """Pickles tensors as what a trace sees of them: weights without their values, others with them.

    Which tensors share memory is part of it: tied weights make another graph. Equal strings count as one, whether or
    not they are one object.
    """

    def __init__(self, file: io.BytesIO, weights: Iterable[torch.Tensor]) -> None:
        super().__init__(file)
        self._weights = {id(tensor) for tensor in weights}
        self._storages: dict[int, int] = {}
        self._strings: dict[str, str] = {}

    def persistent_id(self, value):
        if isinstance(value, str):
            return self._strings.setdefault(value, value)
        if not isinstance(value, torch.Tensor):
            return None
        place = self._storages.setdefault(value.data_ptr(), len(self._storages))
        is_weight = id(value) in self._weights
        values = "" if is_weight else hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
        return str(value.dtype), tuple(value.shape), value.stride(), type(value).__name__, place, values


def _content(weights: Mapping[str, torch.Tensor], *values: Any) -> str:
    """A digest of what values hold but the values of weights, the same in every process."""
    file = io.BytesIO()
    _Contents(file, weights.values()).dump(values)
    return hashlib.sha256(file.getvalue()).hexdigest()
