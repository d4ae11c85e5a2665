"""The promises of the files around the code: pins, verbs, image, and that they name no machine and no package host."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
HASHED = ("serve.txt", "gpu.txt", "train.txt", "dev.txt", "fake-cuda.txt", "build.txt", "web.txt")
VERBS = {"setup", "demo", "test", "test-all", "check", "protos", "lock", "train", "export", "serve", "bench"}
CLIENTS = "adaptor-clients.txt"  # an environment of its own, which shares no version with ours
VERBS |= {
    "adaptor-clients",
    "client-tools",
    "fake-cuda",
    "cuda-test",
    "gpu-check",
    "baseline",
    "lectures",
    "image",
    "image-test",
    "base-image",
    "clean",
}
FOLDERS: tuple[str, ...] = (".ci", "bench", "cli", "clients", "deploy", "docs", "export", "lectures", "model", "protos")
FOLDERS += ("examples", "findings", "requirements", "service", "tests")
FOREIGN = {
    "a machine's own path": re.compile(r"(?<![\w.$}/-])/(?:home|root|Users|work)/\w"),
    "a package host": re.compile(r"\b(?:pypi|npmjs|pythonhosted|pytorch|debian)\.(?:org|com)\b"),
}


def pins(name: str) -> dict[str, str]:
    """Distribution → version of a requirements file."""
    found = re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (REQUIREMENTS / name).read_text(), re.MULTILINE)
    return dict(found)


def direct(name: str) -> set[str]:
    """The distributions that an .in file asks for."""
    lines = (REQUIREMENTS / name).read_text().splitlines()
    return {re.split(r"[\s<>=\[#]", line)[0] for line in lines if line and not line.startswith("#")}


def project_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    found = [path for path in [*ROOT.glob("*"), *inside] if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in found if path.name != ".git"]  # a worktree's


def text_of(path: Path) -> str:
    """A file as UTF-8; of graphs, weights and pictures, which are binary, whatever can be read."""
    is_binary = path.suffix in (".onnx", ".binpb", ".webp", ".safetensors", ".gz")
    return path.read_text(encoding="utf-8", errors="replace" if is_binary else "strict")


@pytest.mark.parametrize("name", [*HASHED, CLIENTS])
def test_every_requirement_is_pinned_with_hashes_and_names_no_host(name):
    text = (REQUIREMENTS / name).read_text()
    entries = re.sub(r"\\\n", "", text)
    for line in filter(None, entries.splitlines()):
        assert line.startswith("#") or re.fullmatch(
            r"[a-z0-9-]+==[^\s;]+( ; [^#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line
        ), line
    assert pins(name)


@pytest.mark.parametrize("name", ["serve.txt", "gpu.txt"])
def test_serving_needs_neither_torch_nor_onnx(name):
    assert not {"torch", "onnx", "onnxscript", "onnx-ir", "safetensors"} & pins(name).keys()


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("serve.txt", ["serve.in", "cpu.in"]),
        ("gpu.txt", ["serve.in", "gpu.in"]),
        ("train.txt", ["serve.in", "cpu.in", "train.in"]),
        ("dev.txt", ["serve.in", "cpu.in", "train.in", "web.in", "dev.in"]),
        ("fake-cuda.txt", ["fake-cuda.in"]),
        ("build.txt", ["build.in"]),
        ("web.txt", ["web.in"]),
        (CLIENTS, ["adaptor-clients.in"]),
    ],
)
def test_pins_hold_everything_asked_for(name, sources):
    asked = set().union(*map(direct, sources))
    assert asked <= pins(name).keys()


@pytest.mark.parametrize("name", HASHED)
def test_one_version_of_a_package_everywhere(name):
    everything = pins("dev.txt")
    assert {
        package: version for package, version in pins(name).items() if everything.get(package, version) != version
    } == {}


def test_the_cuda_provider_that_is_tested_is_the_one_that_is_installed():
    served = pins("gpu.txt")
    assert {package: version for package, version in pins("fake-cuda.txt").items() if package in served} == {
        package: served[package] for package in ("onnxruntime-gpu", "nvidia-cuda-runtime")
    }


def test_torch_is_pinned_in_one_place():
    assert pins("torch.txt").keys() == {"torch"}
    assert all("torch" not in pins(name) for name in HASHED)


def test_every_verb_of_the_makefile_is_described():
    text = (ROOT / "Makefile").read_text()
    described = dict(re.findall(r"^([a-z-]+):[^#\n]*## (.+)$", text, re.MULTILINE))
    assert described.keys() >= VERBS
    assert set(re.findall(r"^\.PHONY: ([a-z-]+)$", text, re.MULTILINE)) >= described.keys()


def test_ci_runs_check_and_test_and_stops_at_the_first_failure():
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    together = "make --jobs 2 --output-sync=target check fake-cuda"
    steps = {"set -euo pipefail", together, "CUDA=1 make test"}
    assert steps <= set(path.read_text().splitlines())


def test_every_package_is_installed_with_the_project():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["package-dir"] == {"": ".", "glossa": "clients/python/glossa"}
    homes = [(ROOT, ("cli", "export", "model", "service")), (ROOT / "clients/python", ("glossa",))]
    found = [
        ".".join(path.parent.relative_to(home).parts)
        for home, tops in homes
        for top in tops
        for path in (home / top).rglob("__init__.py")
    ]
    found.append("glossa")  # a namespace package
    assert sorted(setuptools["packages"]) == sorted(found)


def test_the_image_runs_without_root_and_as_the_process_that_gets_the_signal():
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["glossa", "serve"\]$', text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)
    assert {"cpu", "cuda"} <= set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))


def test_the_dockerfile_keeps_to_what_old_builders_know():
    assert not re.search(r"--link|<<", (ROOT / "Dockerfile").read_text())


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "deploy").glob("*.yaml"), *(ROOT / "deploy/envoy").glob("*.yaml")]),
    ids=lambda path: path.name,
)
def test_deployment_files_are_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_first_command_of_the_readme_comes_early():
    lines = (ROOT / "README.md").read_text().splitlines()[:25]
    assert any(line.startswith("make demo") for line in lines)


def test_the_map_stays_short():
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(what):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if FOREIGN[what].search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a machine's own path", "see /" + "home/someone/x"),
        ("a machine's own path", "'/" + "work/x'"),
        ("a package host", "https://files.python" + "hosted.org/x"),
    ],
)
def test_what_is_foreign_is_recognised(what, line):
    assert FOREIGN[what].search(line)


@pytest.mark.parametrize("line", ["$work/root/usr", "runs/work/x", "/tmp/written", "https://grpc.io"])
def test_what_is_not_foreign_passes(line):
    assert not any(pattern.search(line) for pattern in FOREIGN.values())
