"""The borders of the packages: who may import whom, and where each outside library lives.

Every import of every module is read from its syntax tree, so lazy imports inside functions, type-only imports and
`importlib.import_module("…")` count like any other. The last tests start an interpreter in which torch and onnx cannot
be imported at all.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("model", "export", "service", "protos")

# What a package may take from the project besides itself.
MAY_IMPORT = {
    "model": (),
    "export": ("model",),
    "service": ("export.bundle", "model.tokenizer", "protos.glossa.v1"),
    "protos": (),
    "glossa": ("model", "export", "service", "protos"),
}

# Where an outside library may be imported; one that is not named here may be imported anywhere.
_RPC = ("service/servicer.py", "service/server.py", "service/client.py", "service/health.py", "protos/*")
_GRAPHS = ("export/*",)
HOMES = {
    "onnxruntime": ("service/sessions.py", "export/verify.py"),
    "grpc": _RPC,
    "grpc_health": _RPC,
    "grpc_reflection": _RPC,
    "grpc_status": _RPC,
    "google": _RPC,
    "prometheus_client": ("service/metrics.py",),
    "llguidance": ("service/decoding/grammar.py",),
    "pydantic": ("service/config.py",),
    "pydantic_settings": ("service/config.py",),
    "tokenizers": ("model/tokenizer.py",),
    "typer": ("glossa.py",),
    "torch": ("model/*", "export/*"),
    "onnx": _GRAPHS,
    "onnxscript": _GRAPHS,
    "onnx_ir": _GRAPHS,
}

# Modules that others read without a framework: the only outside libraries they may reach, however indirectly.
LIGHT = {
    "export/bundle.py": frozenset(),
    "model/config.py": frozenset({"yaml"}),
    "model/corpus.py": frozenset(),
    "model/tokenizer.py": frozenset({"tokenizers"}),
}
FRAMEWORKS = frozenset({"torch", "onnx", "onnxscript", "onnx_ir"})  # out of reach of every module of `service`

SHAPELESS = ("utils", "util", "common", "helpers", "helper", "misc")


class Import(NamedTuple):
    name: str  # dotted and absolute: `from a.b import c` is a.b.c
    line: int
    at_start: bool  # runs when the module is imported, not inside a function and not for type checkers only


def imports(path: str, source: str) -> Iterator[Import]:
    """Every import of the module at `path` (relative to the root), wherever it stands."""
    tree = ast.parse(source, path)
    late = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_only(outer)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        for name in _imported_names(node, path):
            yield Import(name, node.lineno, id(node) not in late)  # type: ignore[attr-defined]


def _is_type_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imported_names(node: ast.AST, path: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            package = path.split("/")[:-1]
            parents = package[: len(package) - node.level + 1] if node.level else []
            return [".".join([*parents, *filter(None, [node.module]), alias.name]) for alias in node.names]
        case ast.Call(func=func, args=[ast.Constant(value=str() as name), *_]) if ast.unparse(func) in (
            "__import__",
            "import_module",
            "importlib.import_module",
        ):
            return [name]
    return []


def violations(files: Mapping[str, str]) -> list[str]:
    """Every broken rule in the modules `files` (path → source), as `path:line: what is wrong`."""
    found = {path: list(imports(path, source)) for path, source in files.items()}
    problems = []
    for path, source in files.items():
        if path.endswith("__init__.py"):
            if source.strip():
                problems.append(f"{path}:1: stays empty, so that importing a leaf loads nothing else")
        elif Path(path).stem in SHAPELESS:
            problems.append(f"{path}:1: a module is named by its noun; {Path(path).stem} is none")
        for item in found[path]:
            problems += [f"{path}:{item.line}: {problem}" for problem in _import_problems(path, item)]
        reached = _reach(path, found)
        if path in LIGHT:
            extra = reached - LIGHT[path] - sys.stdlib_module_names
            problems += [f"{path}:1: must be importable without {library}" for library in sorted(extra)]
        if path.startswith("service/"):
            problems += [f"{path}:1: reaches {library}" for library in sorted(reached & FRAMEWORKS)]
    return problems


def _import_problems(path: str, item: Import) -> Iterator[str]:
    package, library = path.removesuffix(".py").split("/")[0], item.name.split(".")[0]
    if library in (*PACKAGES, "glossa"):
        allowed = (package, *MAY_IMPORT[package])
        if not any(item.name == name or item.name.startswith(f"{name}.") for name in allowed):
            yield f"{package} may not import {item.name}"
        if package == "glossa" and item.at_start:
            yield f"the command imports {item.name} only inside the verb that needs it"
    elif not any(fnmatchcase(path, home) for home in HOMES.get(library, ("*",))):
        yield f"{library} is imported only in {', '.join(HOMES[library])}"


def _reach(path: str, found: Mapping[str, list[Import]]) -> set[str]:
    """The outside libraries that importing `path` can load, through the project's own modules too."""
    libraries, todo, seen = set(), [path], set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for item in found[current]:
            module = _project_file(item.name, found)
            if module is not None:
                todo.append(module)
            elif item.name.split(".")[0] not in PACKAGES:
                libraries.add(item.name.split(".")[0])
    return libraries


def _project_file(name: str, found: Mapping[str, list[Import]]) -> str | None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for candidate in ("/".join(parts[:end]) + ".py", "/".join(parts[:end]) + "/__init__.py"):
            if candidate in found:
                return candidate
    return None


def project_files() -> dict[str, str]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    command = ROOT / "glossa.py"
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in [*paths, command]}


def test_every_import_respects_the_borders():
    assert violations(project_files()) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("model/layers.py", "import export.bundle", "model may not import export.bundle"),
        ("model/layers.py", "def f():\n    from service import request", "model may not import service.request"),
        ("export/graphs.py", "from service.errors import StartupError", "export may not import service.errors"),
        ("service/engine.py", "from export import to_onnx", "service may not import export.to_onnx"),
        ("service/engine.py", "from export import *", "service may not import export.*"),
        ("service/engine.py", "from model.config import ModelConfig", "service may not import model.config"),
        ("service/engine.py", "import glossa", "service may not import glossa"),
        ("service/engine.py", "import onnxruntime as ort", "onnxruntime is imported only in"),
        ("service/engine.py", "import grpc.aio", "grpc is imported only in"),
        ("service/engine.py", "from google.rpc import status_pb2", "google is imported only in"),
        ("service/engine.py", "from prometheus_client import Counter", "prometheus_client is imported only in"),
        ("service/runner.py", "def f():\n    import torch", "torch is imported only in"),
        ("service/runner.py", "if TYPE_CHECKING:\n    import onnx", "onnx is imported only in"),
        ("service/runner.py", "import importlib\nimportlib.import_module('onnx')", "onnx is imported only in"),
        ("service/runner.py", "__import__('torch')", "torch is imported only in"),
        ("model/layers.py", "import onnx", "onnx is imported only in export/*"),
        ("export/bundle.py", "import numpy", "must be importable without numpy"),
        ("model/config.py", "import torch", "must be importable without torch"),
        ("model/tokenizer.py", "import numpy", "must be importable without numpy"),
        ("glossa.py", "import service.server", "only inside the verb"),
        ("glossa.py", "try:\n    from model import train\nfinally:\n    pass", "only inside the verb"),
        ("service/__init__.py", "from service.client import Client", "stays empty"),
        ("service/utils.py", "", "named by its noun"),
    ],
)
def test_a_broken_border_is_found(path, source, expected):
    assert any(expected in problem for problem in violations({path: source})), violations({path: source})


def test_a_framework_behind_a_permitted_module_is_found():
    files = {
        "service/runner.py": "from model.tokenizer import Tokenizer",
        "model/tokenizer.py": "from model.layers import Block",
        "model/layers.py": "import torch",
    }
    problems = violations(files)
    assert "service/runner.py:1: reaches torch" in problems
    assert "model/tokenizer.py:1: must be importable without torch" in problems


def test_relative_imports_are_resolved():
    assert [item.name for item in imports("service/engine.py", "from . import runner\nfrom .step import Plan")] == [
        "service.runner",
        "service.step.Plan",
    ]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("service/engine.py", "from export import bundle\nfrom model.tokenizer import Tokenizer"),
        ("service/servicer.py", "import grpc\nfrom protos.glossa.v1 import glossa_pb2"),
        ("glossa.py", "import typer\ndef serve():\n    from service import server"),
        ("glossa.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from model.config import ModelConfig"),
        ("export/graphs.py", "import torch, onnx\nfrom model.transformer import GenerativeModel"),
    ],
)
def test_what_the_borders_allow_passes(path, source):
    assert violations({path: source}) == []


def import_without(blocked: set[str], modules: list[str]) -> subprocess.CompletedProcess[str]:
    """Import `modules` in a fresh interpreter in which the `blocked` libraries do not exist."""
    program = f"""
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}")
sys.meta_path.insert(0, Blocked())
for name in {modules!r}:
    importlib.import_module(name)
"""
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_service_starts_where_torch_and_onnx_are_not_installed():
    modules = sorted(f"service.{path.stem}" for path in (ROOT / "service").glob("*.py") if path.stem != "__init__")
    done = import_without(set(FRAMEWORKS), modules)
    assert done.returncode == 0, done.stderr


def test_the_client_needs_no_runtime():
    done = import_without({*FRAMEWORKS, "onnxruntime", "numpy", "tokenizers", "prometheus_client"}, ["service.client"])
    assert done.returncode == 0, done.stderr


def test_a_blocked_import_fails():
    done = import_without({"numpy"}, ["numpy"])
    assert "blocked: numpy" in done.stderr
