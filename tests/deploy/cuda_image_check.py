"""Runs the CUDA image on a machine without a GPU: `python -m tests.deploy.cuda_image_check IMAGE [BUNDLE]`.

Every library that the provider needs must be in the image. Without a driver, `auto` must serve on the CPU and `cuda`
refuse, both with cause and fix. With the fake CUDA of the tests in place of CUDA and the driver both must serve on CUDA
with the CPU's answers. Everything else that an image promises is `image_check.py`'s.

cuDNN is hidden from the fake, on which it cannot start. Nothing here says what a GPU computes.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from glossa.client import Client
from glossa.client.types import Hypothesis
from tests.cuda import fake
from tests.cuda.served import NEAR_TIE, gap
from tests.deploy.image_check import TEXT, Container, run, running

GPU_PINS = Path(__file__).resolve().parents[2] / "requirements" / "gpu.txt"
LIBRARIES = "/opt/glossa/lib/python3.11/site-packages/nvidia"
DRIVER = "libcuda.so.1"
LIMITED = ("--memory", "4g", "--cpus", "2")
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
NO_DRIVER = "no NVIDIA driver is installed; fix: install driver 580 or newer, or start the container with --gpus all"
WORDS = TEXT.split()
TEXTS = [" ".join(WORDS[first : first + count]) for count in (3, 6, len(WORDS)) for first in range(3)]

INSTALLED = """
import importlib.metadata, json, sys
print(json.dumps({d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}))
"""

# The provider's symbols are resolved at once, by the libraries of the image. Only the driver is the fake's.
LOADED = f"""
import ctypes, os, onnxruntime
onnxruntime.preload_dlls()
folder = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
ctypes.CDLL(os.path.join(folder, "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.path.join(folder, "libonnxruntime_providers_cuda.so"), mode=os.RTLD_NOW)
files = {{line.split()[-1] for line in open("/proc/self/maps") if "/" in line}}
strange = [file for file in files if "/libcu" in file and not file.startswith("{LIBRARIES}") and "{DRIVER}" not in file]
assert not strange, strange
assert any(file.startswith("{LIBRARIES}/cudnn/") for file in files), "no cuDNN"
"""


def check(image: str, tool: str, bundle: Path) -> None:
    if reason := fake.missing():
        raise AssertionError(reason)
    libraries = fake.build()
    driver, on_cpu = ("--volume", f"{libraries / DRIVER}:/usr/lib/{DRIVER}:ro"), ("--device", "cpu")
    with running(tool, image, bundle, flags=driver, arguments=on_cpu) as container:
        _check_content(container)
    with running(tool, image, bundle, flags=LIMITED) as container:
        container.wait_until_ready()
        expected = _answers(container)
        _check_fallback(container)
    with running(tool, image, bundle, flags=LIMITED, arguments=("--device", "cuda")) as container:
        _check_refusal(container)
    with _fake_cuda(libraries) as flags:
        for device in ("cuda", "auto"):
            arguments = ("--device", device)
            with running(tool, image, bundle, flags=(*LIMITED, *flags), arguments=arguments) as container:
                _check_on_fake(container, device, expected)


@contextlib.contextmanager
def _fake_cuda(libraries: Path) -> Iterator[tuple[str, ...]]:
    """Flags that put the fake in place of CUDA and the driver, and an empty folder in place of cuDNN."""
    cuda, cudnn = f"{LIBRARIES}/cu13/lib", f"{LIBRARIES}/cudnn/lib"
    with tempfile.TemporaryDirectory() as empty:
        volumes = ("--volume", f"{libraries}:{cuda}:ro", "--volume", f"{empty}:{cudnn}:ro")
        yield (*volumes, "--env", f"LD_LIBRARY_PATH={cuda}")


def _check_content(container: Container) -> None:
    installed = json.loads(container.execute("python3", "-c", INSTALLED))
    pins = dict(re.findall(r"^(onnxruntime-gpu|nvidia-[a-z0-9-]+)==([^\s;]+)", GPU_PINS.read_text(), re.MULTILINE))
    found = {name: version for name, version in installed.items() if name.startswith(("onnxruntime", "nvidia-"))}
    assert found == pins, f"installed are {found}, and {GPU_PINS.name} pins {pins}"
    container.execute("python3", "-c", LOADED)
    print(f"onnxruntime-gpu {pins['onnxruntime-gpu']} finds every library that it needs, cuDNN too")


def _check_fallback(container: Container) -> None:
    """Without a driver `auto` serves on the CPU, and says why wherever it is asked."""
    with Client(f"127.0.0.1:{container.port}") as client:
        provider = client.get_model().execution_provider
    assert (provider.provider, provider.fallback) == (CPU, True), provider
    assert NO_DRIVER in provider.reason, provider
    logged = [event["reason"] for event in container.events("provider_fallback")]
    assert logged == [provider.reason], logged
    doctor = container.execute("glossa", "doctor", "/models/demo")
    for part in NO_DRIVER.split("; "):
        assert part in doctor, f"glossa doctor lacks: {part}\n{doctor}"
    print(f"without a driver, --device auto: {CPU}; GetModel, the log and glossa doctor say: {provider.reason}")


def _check_refusal(container: Container) -> None:
    status, log = container.wait(), container.log()
    expected = f"device cuda is required, but {NO_DRIVER}"
    assert status == 1, f"exit status {status}"
    assert expected in log, f"the log lacks: {expected}"
    print(f"without a driver, --device cuda: exit status 1; {expected}")


def _check_on_fake(container: Container, device: str, expected: Sequence[Hypothesis]) -> None:
    ready_s = container.wait_until_ready()
    with Client(f"127.0.0.1:{container.port}") as client:
        provider = client.get_model().execution_provider
    assert (provider.provider, provider.fallback) == (CUDA, False), provider
    pairs = list(zip(_answers(container), expected, strict=True))
    gaps = [gap(own, other) for own, other in pairs if own.tokens != other.tokens]
    assert max(gaps, default=0.0) < NEAR_TIE, f"answers differ from the CPU's by log-probabilities of {gaps}"
    container.execute("glossa", "healthcheck")
    doctor = container.execute("glossa", "doctor", "/models/demo")
    assert re.search(rf"^ok +execution providers .*{CUDA}", doctor, re.MULTILINE), doctor
    container.terminate()
    status = container.wait()
    assert status == 0, f"exit status {status}"
    print(
        f"on the fake CUDA, --device {device}: {CUDA}, ready after {ready_s:.1f} s, {len(pairs) - len(gaps)} of "
        f"{len(pairs)} answers equal to the CPU's, SIGTERM: exit 0"
    )


def _answers(container: Container) -> list[Hypothesis]:
    with Client(f"127.0.0.1:{container.port}") as client:
        wanted = [client.translate(text, include_tokens=True, token_logprobs=True) for text in TEXTS]
    return [answer.hypotheses[0] for answer in wanted]


if __name__ == "__main__":
    run(check)
