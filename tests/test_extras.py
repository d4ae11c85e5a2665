"""What an installation promises: the command runs and its modules can be imported with nothing but what it requires.

Nothing is fetched: a fresh environment sees those distributions of the running one that the wheel requires, directly or
through others, and no others.
"""

import ast
import re
import sys
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from glossa.version import VERSION
from tests.packages import ROOT, build_wheel, make_environment, run_alone

SERVING = ("cli", "glossa.client", "glossa.v1", "service", "export.bundle", "model.tokenizer")
EVERYTHING = ("cli", "glossa.client", "glossa.v1", "service", "export", "model")
OWN = {"bench", "cli", "codegen", "deploy", "export", "glossa", "lectures", "model", "service", "tests"}
ELSEWHERE = {"onnxruntime_genai", "optimum", "tritonclient"}  # in interpreters of their own
FINDER = '''
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    """Refuses the packages of distributions that are not required."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"{{name}} is not required", name=name)

sys.meta_path.insert(0, Hidden())
'''
IMPORT_ALL = """
import importlib, pkgutil, sys

for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        importlib.import_module(info.name)
        print(info.name)
"""


def requirements_of(wheel):
    """The requirements that a wheel states, with their conditions."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(r"^Requires-Dist: (.+)$", archive.read(name).decode(), re.MULTILINE)


def required(requirements, extra=""):
    """Names of the distributions that are required with an extra, and that those require. Asserts their versions."""
    found, waiting = set(), [(text, extra) for text in requirements]
    while waiting:
        text, extra = waiting.pop()
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            version = metadata.version(wanted.name)
            assert wanted.specifier.contains(version, prereleases=True), f"{text}: {version} is installed"
            for further in ("", *wanted.extras):
                if (known := (canonicalize_name(wanted.name), further)) not in found:
                    found.add(known)
                    waiting += [(text, further) for text in metadata.requires(wanted.name) or ()]
    return {name for name, _ in found}


def packages_of(distributions):
    """Importable top-level names of these distributions."""
    homes = metadata.packages_distributions()
    return {package for package, names in homes.items() if distributions & set(map(canonicalize_name, names))}


def imported(path):
    """Top-level names that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(".", tmp_path_factory.mktemp("extras"))


def install(wheel, directory, extra=""):
    """The interpreter of an environment that has a wheel and sees only what it requires."""
    python = make_environment(directory / "environment", wheel)
    visible = packages_of(required(requirements_of(wheel), extra))
    hidden = metadata.packages_distributions().keys() - visible - sys.stdlib_module_names - OWN
    (packages,) = (directory / "environment").glob("lib/python*/site-packages")
    (packages / "required.py").write_text(FINDER.format(hidden=sorted(hidden)))
    (packages / "required.pth").write_text("import required\n")
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "promised"),
    [
        ("", SERVING),
        ("otel", SERVING),
        ("oidc", SERVING),
        ("web", (*SERVING, "glossa.web")),
        ("train", EVERYTHING),
        ("tensorboard", EVERYTHING),
        ("dev", EVERYTHING),
    ],
)
def test_the_command_runs_with_what_is_required(wheel, tmp_path, extra, promised):
    python = install(wheel, tmp_path, extra)
    glossa = python.with_name("glossa")
    assert run_alone(glossa, "--version", directory=tmp_path).stdout == f"glossa {VERSION}\n"
    assert "Usage: glossa" in run_alone(glossa, "--help", directory=tmp_path).stdout
    done = run_alone(python, "-c", IMPORT_ALL, *promised, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 100
    assert (run_alone(python, "-c", "import torch", directory=tmp_path).returncode == 0) == (promised is EVERYTHING)
    with_traces = run_alone(python, "-c", "import opentelemetry.sdk", directory=tmp_path).returncode == 0
    assert with_traces == (extra in ("otel", "dev"))


@pytest.mark.slow
def test_the_client_runs_with_what_is_required(tmp_path):
    python = install(build_wheel("clients/python", tmp_path), tmp_path)
    done = run_alone(python, "-c", IMPORT_ALL, "glossa.client", "glossa.v1", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run_alone(python, "-c", "import tokenizers", directory=tmp_path).returncode == 1


@pytest.mark.slow
def test_developing_requires_what_tests_and_tools_import(wheel):
    known = packages_of(required(requirements_of(wheel), "dev")) | sys.stdlib_module_names | OWN | ELSEWHERE
    folders = ("bench", "codegen", "deploy", "lectures", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {path.name: missing for path in files if (missing := {*imported(path)} - known)} == {}
