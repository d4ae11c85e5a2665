"""The borders of the packages: who may import whom, how large a room is, and where each outside library lives.

Every import of every module is read from its syntax tree, so lazy imports inside functions, type-only imports and
`importlib.import_module("…")` count like any other. The last tests start an interpreter in which torch and onnx cannot
be imported at all.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("model", "export", "service", "glossa", "cli", "codegen", "deploy")
HOME = {"glossa": "clients/python/glossa"}  # where a package lies, if not at the top
OUTSIDE = ("bench", "lectures", "tests")  # nothing of the product may import them
MAX_MODULES = 20  # of a room

# What a package may take from the project besides itself.
MAY_IMPORT = {
    "model": (),
    "export": ("model",),
    "service": (
        "export.bundle",
        "model.tokenizer",
        "model.prompts",
        "glossa.v1",
        "glossa.version",
    ),
    "glossa": (),
    "cli": ("model", "export", "service", "glossa"),
    "deploy": (),
    "codegen": ("service.options", "service.errors", "service.settings", "service.edge", "glossa.v1"),
}

# What a room may take from its own package, besides itself. The most specific entry decides; a package without one is
# one room. `service` without a room is the plain data that everyone shares, and `server`, which puts it all together.
_SHARED = (
    *(
        f"service.{path.stem}"
        for path in sorted((ROOT / "service").glob("*.py"))
        if path.stem not in ("__init__", "server")
    ),
    "service.machine",
    "service.memory",
)
_MODEL = tuple(f"model.{path.stem}" for path in sorted((ROOT / "model").glob("*.py")) if path.stem != "__init__")
_EDGE_BELOW_MODELS = (
    *(*_SHARED, "service.settings", "service.wire", "service.text"),
    *("service.edge.observability", "service.edge.security", "service.edge.admission"),
)
_EDGE_BELOW_CALLS = (*_EDGE_BELOW_MODELS, "service.edge.models", "service.edge.requests")
_CLI = tuple(
    f"cli.{name}"
    for name in (
        *("terminal", "flag_names", "progress", "text_input", "flags", "options_file", "local_server"),
        *("connection", "verb"),
    )
)
ROOMS = {
    "model": (*_MODEL, "model.tokenizers"),
    "model.corpus": (),
    "model.tokenizers": _MODEL,
    "model.prompts": (*_MODEL, "model.tokenizers"),
    "model.reference": _MODEL,
    "model.checkpoints": (*_MODEL, "model.prompts"),
    "model.training": (*_MODEL, "model.prompts", "model.checkpoints", "model.corpus"),
    "model.pretrained": (*_MODEL, "model.prompts", "model.checkpoints", "model.training", "model.tokenizers"),
    "export.bundle": (),
    "export.limits": ("export.bundle",),
    "export.sessions": ("export.bundle",),
    "export.graphs": ("export.bundle",),
    "export.passes": ("export.bundle", "export.graphs"),
    "export.verification": ("export.bundle", "export.limits", "export.sessions", "export.graphs", "export.passes"),
    "service.machine": (),
    "service.memory": (),
    "service": _SHARED,
    "service.settings": _SHARED,
    "service.decoding": _SHARED,
    "service.engine": (*_SHARED, "service.decoding"),
    "service.runtime": (*_SHARED, "service.settings"),
    "service.wire": (*_SHARED, "service.settings"),
    "service.text": _SHARED,
    "service.engine_process": (
        *(*_SHARED, "service.settings", "service.decoding", "service.engine"),
        *("service.runtime", "service.wire"),
    ),
    "service.edge.observability": (*_SHARED, "service.settings"),
    "service.edge.security": (*_SHARED, "service.settings", "service.edge.observability"),
    "service.edge.admission": (*_SHARED, "service.settings", "service.edge.observability"),
    "service.edge.models": _EDGE_BELOW_MODELS,
    "service.edge.requests": (*_EDGE_BELOW_MODELS, "service.edge.models"),
    "service.edge.calls": _EDGE_BELOW_CALLS,
    "service.edge.rpcs": (*_EDGE_BELOW_CALLS, "service.edge.calls"),
    "service.edge.versions": (*_EDGE_BELOW_CALLS, "service.edge.calls"),
    "service.adaptors": (*_SHARED, "service.settings", "service.edge"),
    "service.server": (*_SHARED, "service.settings", "service.edge", "service.adaptors"),
    "glossa.client": ("glossa.v1", "glossa.version"),
    "glossa.v1": ("glossa.version",),
    "glossa.web": ("glossa.client", "glossa.v1", "glossa.version"),
    "cli": _CLI,
    "cli.load": _CLI,
    "cli.requests": _CLI,
    "cli.serving": _CLI,
    "cli.training": _CLI,
    "cli.export": _CLI,
    "cli.demo": (*_CLI, "cli.export", "cli.training"),
    "cli.main": ("cli",),
}

# Where an outside library may be imported; one that is not named here may be imported anywhere.
_GRPC_EDGE = (
    *("calls/record", "calls/calls", "calls/message_reader", "rpcs/servicer", "rpcs/model_calls", "rpcs/rpc_handlers"),
    "rpcs/reflection",
    *("observability/status", "observability/health", "admission/backlog", "versions/admin"),
    "versions/admin_calls",
    *("security/checked_services", "security/certificates", "security/security"),
)
_EDGE = (*(f"service/edge/{name}.py" for name in _GRPC_EDGE), "service/adaptors/*", "service/server.py")
_RPC = (*_EDGE, "clients/python/glossa/client/*")
_GRAPHS = ("export/*",)
HOMES = {
    "onnxruntime": ("service/runtime/sessions.py", "export/sessions.py", "export/verification/ort_graphs.py"),
    "grpc": (*_RPC, "clients/python/glossa/v1/*"),
    "grpc_health": _RPC,
    "grpc_reflection": ("service/edge/rpcs/reflection.py",),
    "grpc_status": _RPC,
    "google": (
        *_RPC,
        "service/edge/calls/batches.py",
        "service/edge/calls/items.py",
        "clients/python/glossa/v1/*",
        "codegen/descriptors.py",
        "service/edge/versions/canary_messages.py",
    ),
    "prometheus_client": (
        "service/edge/observability/metrics.py",
        "service/edge/observability/metric_series.py",
        "service/edge/observability/exposition.py",
    ),
    "jwt": ("service/edge/security/signing_keys.py", "service/edge/security/web_tokens.py"),
    "cryptography": ("service/edge/security/signing_keys.py",),
    "opentelemetry": ("service/edge/observability/tracing.py",),
    "msgspec": ("service/measurements.py", "service/wire/messages.py", "service/edge/models/process_pool.py"),
    "llguidance": ("service/decoding/grammar.py",),
    "pydantic": (
        "service/settings/config.py",
        "service/settings/loading.py",
        "service/settings/setting_types.py",
    ),
    "pydantic_settings": (
        "service/settings/config.py",
        "service/settings/setting_types.py",
    ),
    "tokenizers": ("model/tokenizer.py",),
    "jinja2": ("model/prompts/chat_template.py",),
    "fasttext": ("service/text/language_detection.py",),
    "gguf": ("model/pretrained/gguf/*",),
    "huggingface_hub": ("model/pretrained/hub.py",),
    "httpx2": ("model/pretrained/hub.py",),
    "sentencex": ("service/text/segmentation.py",),
    "typer": ("cli/*",),
    "starlette": ("clients/python/glossa/web/*",),
    "uvicorn": ("clients/python/glossa/web/server.py",),
    "torch": ("model/*", "export/*"),
    "onnx": _GRAPHS,
    "onnxscript": _GRAPHS,
    "onnx_ir": _GRAPHS,
}

# Modules that others read without a framework: the only outside libraries they may reach, however indirectly.
LIGHT = {
    "export/bundle/directory.py": frozenset(),
    "export/bundle/manifest.py": frozenset(),
    "model/config.py": frozenset(),
    "model/architecture_config.py": frozenset(),
    "model/presets.py": frozenset({"yaml"}),
    "model/corpus/corpus.py": frozenset(),
    "model/tokenizer.py": frozenset({"tokenizers"}),
    "model/prompts/chat_template.py": frozenset({"jinja2"}),
    "model/prompts/templates.py": frozenset({"jinja2"}),
    "model/prompts/translation_prompts.py": frozenset({"jinja2", "tokenizers"}),
}
FRAMEWORKS = frozenset({"torch", "onnx", "onnxscript", "onnx_ir"})  # out of reach of every module of `service`

LAZY = "cli/main.py"  # the modules that it loads import a stage only inside a verb: `glossa --help` answers at once
EXPORTING = ("clients/python/glossa/client/__init__.py",)  # what people who install the client import

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
            if source.strip() and path not in EXPORTING:
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
    problems += _loaded_at_start(LAZY, found)
    circles = [" → ".join(circle) for circle in _circles(found)]
    return problems + [f"import circle: {circle}" for circle in circles]


def _module(path: str) -> str:
    return path.removeprefix("clients/python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_within(name: str, names: Iterable[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in names)


def _import_problems(path: str, item: Import) -> Iterator[str]:
    module, library = _module(path), item.name.split(".")[0]
    package = module.split(".")[0]
    if library in OUTSIDE:
        yield f"{package} may not import {item.name}"
    elif library in PACKAGES:
        if not _is_within(item.name, (package, *MAY_IMPORT[package])):
            yield f"{package} may not import {item.name}"
        elif library == package and not _is_within(item.name, _reachable_rooms(module)):
            yield f"{module} may not import {item.name}: it lies above {_room(module)}"
    elif not any(fnmatchcase(path, home) for home in HOMES.get(library, ("*",))):
        yield f"{library} is imported only in {', '.join(HOMES[library])}"


def _loaded_at_start(start: str, found: Mapping[str, list[Import]]) -> list[str]:
    """What importing the command loads besides the standard library, typer and `cli` itself."""
    problems, todo, seen = [], [start] if start in found else [], set[str]()
    while todo:
        path = todo.pop()
        seen.add(path)
        for item in found[path]:
            library, file = item.name.split(".")[0], _project_file(item.name, found)
            if not item.at_start or library in (*sys.stdlib_module_names, "typer"):
                continue
            if library != "cli":
                problems.append(f"{path}:{item.line}: imports {item.name} only inside the verb that needs it")
            elif file is not None and file not in seen:
                todo.append(file)
    return problems


def _room(module: str) -> str:
    """The most specific entry of ROOMS for a module; without one, its package. Modules of `export` that no entry names
    put the others together, as `service.server` does."""
    parts = module.split(".")
    return next((room for end in range(len(parts), 0, -1) if (room := ".".join(parts[:end])) in ROOMS), parts[0])


def _reachable_rooms(module: str) -> tuple[str, ...]:
    room = _room(module)
    inside = (room,) if room not in ("model", "service", "cli") else ()
    return (*inside, *ROOMS.get(room, (room,)))


def _circles(found: Mapping[str, list[Import]]) -> Iterator[list[str]]:
    """Modules that import each other, however indirectly and whenever: one circle for each group of them."""
    edges = {
        path: {other for item in items if (other := _project_file(item.name, found)) is not None and other != path}
        for path, items in found.items()
    }
    done: set[str] = set()
    for path in sorted(edges):
        circle = _way_back(path, edges) if path not in done else None
        if circle:
            done.update(circle)
            yield circle


def _way_back(start: str, edges: Mapping[str, set[str]]) -> list[str] | None:
    """The shortest way from a module to itself."""
    ways, seen = [[start]], {start}
    while ways:
        longer = []
        for way in ways:
            for other in sorted(edges[way[-1]]):
                if other == start:
                    return [*way, start]
                if other not in seen:
                    seen.add(other)
                    longer.append([*way, other])
        ways = longer
    return None


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
    parts = [*HOME.get(parts[0], parts[0]).split("/"), *parts[1:]]
    for end in range(len(parts), 0, -1):
        for candidate in ("/".join(parts[:end]) + ".py", "/".join(parts[:end]) + "/__init__.py"):
            if candidate in found:
                return candidate
    return None


def project_files() -> dict[str, str]:
    paths = [path for package in PACKAGES for path in (ROOT / HOME.get(package, package)).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def halls(paths: Iterable[str]) -> list[str]:
    """The rooms with more modules than a reader can keep in mind. Generated modules do not count."""
    rooms = Counter(Path(path).parent.as_posix() for path in paths if not path.endswith(("__init__.py", "_pb2.py")))
    return [f"{room}: {count} modules, at most {MAX_MODULES}" for room, count in rooms.items() if count > MAX_MODULES]


def test_every_import_respects_the_borders():
    assert violations(project_files()) == []


def test_every_package_is_read():
    assert {_module(path).split(".")[0] for path in project_files()} == set(PACKAGES)


def test_no_room_is_a_hall():
    outside = [
        path.relative_to(ROOT).as_posix() for name in ("bench", "lectures") for path in (ROOT / name).rglob("*.py")
    ]
    assert halls([*project_files(), *outside]) == []


def test_a_hall_is_found():
    assert halls([f"service/edge/{number}.py" for number in range(21)]) == ["service/edge: 21 modules, at most 20"]


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("model/layers.py", "import export.bundle.directory", "model may not import export.bundle.directory"),
        ("model/layers.py", "def f():\n    from service import request", "model may not import service.request"),
        (
            "export/graphs/encoder_decoder.py",
            "from service.errors import StartupError",
            "export may not import service.errors",
        ),
        ("service/engine/engine.py", "from export import to_onnx", "service may not import export.to_onnx"),
        ("service/engine/engine.py", "from export import *", "service may not import export.*"),
        ("service/engine/engine.py", "from model.config import ModelConfig", "service may not import model.config"),
        ("service/engine/engine.py", "import glossa", "service may not import glossa"),
        ("service/engine/engine.py", "import onnxruntime as ort", "onnxruntime is imported only in"),
        ("service/engine/engine.py", "import grpc.aio", "grpc is imported only in"),
        ("service/engine/engine.py", "from google.rpc import status_pb2", "google is imported only in"),
        ("service/edge/calls/calls.py", "from opentelemetry import trace", "opentelemetry is imported only in"),
        ("service/engine/engine.py", "from prometheus_client import Counter", "prometheus_client is imported only in"),
        ("service/runtime/runner.py", "def f():\n    import torch", "torch is imported only in"),
        ("service/runtime/runner.py", "if TYPE_CHECKING:\n    import onnx", "onnx is imported only in"),
        ("service/runtime/runner.py", "import importlib\nimportlib.import_module('onnx')", "onnx is imported only in"),
        ("service/runtime/runner.py", "__import__('torch')", "torch is imported only in"),
        ("model/layers.py", "import onnx", "onnx is imported only in export/*"),
        ("export/bundle/directory.py", "import numpy", "must be importable without numpy"),
        ("model/config.py", "import torch", "must be importable without torch"),
        ("model/tokenizer.py", "import numpy", "must be importable without numpy"),
        ("cli/requests/ask.py", "from cli.serving.admin import admin", "it lies above cli.requests"),
        ("cli/terminal.py", "from cli.export import export", "it lies above cli"),
        ("cli/main.py", "import service.server", "only inside the verb"),
        ("cli/main.py", "import grpc", "only inside the verb"),
        ("cli/main.py", "try:\n    from model import train\nfinally:\n    pass", "only inside the verb"),
        ("service/__init__.py", "from glossa.client import Client", "stays empty"),
        ("service/utils.py", "", "named by its noun"),
    ],
)
def test_a_broken_border_is_found(path, source, expected):
    assert any(expected in problem for problem in violations({path: source})), violations({path: source})


def test_a_framework_behind_a_permitted_module_is_found():
    files = {
        "service/runtime/runner.py": "from model.tokenizer import Tokenizer",
        "model/tokenizer.py": "from model.layers import Block",
        "model/layers.py": "import torch",
    }
    problems = violations(files)
    assert "service/runtime/runner.py:1: reaches torch" in problems
    assert "model/tokenizer.py:1: must be importable without torch" in problems


def test_a_stage_behind_a_module_of_the_command_is_found():
    files = {
        "cli/main.py": "from cli.training.train import train",
        "cli/training/train.py": "from model.config import PRESETS",
    }
    assert violations(files) == [
        "cli/training/train.py:1: imports model.config.PRESETS only inside the verb that needs it",
    ]


def test_relative_imports_are_resolved():
    assert [
        item.name for item in imports("service/engine/core.py", "from . import engine\nfrom ..step import Plan")
    ] == [
        "service.engine.engine",
        "service.step.Plan",
    ]


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("service/step.py", "from service.runtime.kv_cache import CacheBuffer", "it lies above service"),
        ("service/decoding/beam.py", "from service.engine.engine import Engine", "it lies above service.decoding"),
        ("service/runtime/runner.py", "from service.engine.engine import Engine", "it lies above service.runtime"),
        ("service/engine/engine.py", "from service.runtime.runner import Runner", "it lies above service.engine"),
        ("service/engine/engine.py", "from service.server import Server", "it lies above service.engine"),
        ("service/edge/rpcs/servicer.py", "from service.engine.engine import Engine", "it lies above service.edge"),
        ("model/corpus/scenes.py", "from model.tokenizer import Tokenizer", "it lies above model.corpus"),
        ("model/layers.py", "from model.training.objective.loss import Loss", "it lies above model"),
        ("export/graphs/decoder.py", "from export.passes import optimize", "it lies above export.graphs"),
        ("export/passes/optimize.py", "from export.verification import checks", "it lies above export.passes"),
        ("export/bundle/directory.py", "from export.graphs import decoder", "it lies above export.bundle"),
        ("cli/main.py", "from tests.tiny import tiny_model", "cli may not import tests.tiny"),
        ("service/server.py", "from bench.speed import peers", "service may not import bench.speed.peers"),
        ("clients/python/glossa/client/types.py", "from service import options", "glossa may not import service"),
    ],
)
def test_an_import_against_the_order_of_the_rooms_is_found(path, source, expected):
    assert any(expected in problem for problem in violations({path: source})), violations({path: source})


@pytest.mark.parametrize(
    "back",
    [
        "from service.step import StepPlan",
        "def f():\n    from service.step import StepPlan",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from service.step import StepPlan",
    ],
    ids=["plain", "lazy", "type-only"],
)
def test_an_import_circle_of_any_kind_is_found(back):
    files = {
        "service/step.py": "from service.sequence import Sequence",
        "service/sequence.py": "from service import request",
        "service/request.py": back,
    }
    assert violations(files) == [
        "import circle: service/request.py → service/step.py → service/sequence.py → service/request.py"
    ]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("service/engine/engine.py", "from export import bundle\nfrom model.tokenizer import Tokenizer"),
        ("service/edge/rpcs/servicer.py", "import grpc\nfrom glossa.v1 import glossa_pb2"),
        ("cli/main.py", "import typer\ndef serve():\n    from service import server"),
        (
            "cli/main.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from model.config import ModelConfig",
        ),
        ("export/graphs/encoder_decoder.py", "import torch, onnx\nfrom model.transformer import GenerativeModel"),
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
    modules = sorted(_module(path.relative_to(ROOT).as_posix()) for path in (ROOT / "service").rglob("*.py"))
    done = import_without(set(FRAMEWORKS), modules)
    assert done.returncode == 0, done.stderr


def test_the_client_needs_no_runtime():
    done = import_without(
        {*FRAMEWORKS, "onnxruntime", "numpy", "tokenizers", "prometheus_client"}, ["glossa.client.client"]
    )
    assert done.returncode == 0, done.stderr


def test_a_blocked_import_fails():
    done = import_without({"numpy"}, ["numpy"])
    assert "blocked: numpy" in done.stderr
