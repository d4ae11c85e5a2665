"""The CUDA device of this process as the CUDA runtime describes it, and whether it is the fake one of tests/cuda."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from typing import Any

from service.runtime.cuda_device import memory_info
from service.runtime.cuda_memory import CudaRuntime
from service.runtime.sessions import LEAST_CUDA, check_cuda_of_machine

PROPERTIES_BYTES = 1 << 14  # more than cudaDeviceProp has, which begins with the name
NAME_BYTES = 256
ATTRIBUTES = {"multiprocessors": 16, "compute capability": 75, "of it, minor": 76}  # cudaDeviceAttr
PACKAGES = re.compile(r"onnxruntime.*|nvidia-.*|numpy|grpcio", re.IGNORECASE)
NOT_EMULATED = re.compile(r"^(\d+) not emulated (.*)$", re.MULTILINE)


def description() -> dict[str, Any]:
    """Driver, device and libraries. Raises StartupError where CUDA cannot be used."""
    runtime, found = check_cuda_of_machine(0), dict[str, Any]()
    for measure, function in {
        "driver's CUDA": "cudaDriverGetVersion",
        "runtime's CUDA": "cudaRuntimeGetVersion",
    }.items():
        found[measure] = _version(_integer(runtime, function))
    found["device"] = device_name(runtime)
    for measure, attribute in ATTRIBUTES.items():
        found[measure] = _integer(runtime, "cudaDeviceGetAttribute", ctypes.c_int(attribute), ctypes.c_int(0))
    free, total = memory_info(_library())
    found["free memory"] = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB"
    return found | packages()


def device_name(runtime: CudaRuntime) -> str:
    """The name of the first device."""
    properties = ctypes.create_string_buffer(PROPERTIES_BYTES)
    runtime.call("cudaGetDeviceProperties", properties, ctypes.c_int(0))
    return properties.raw[:NAME_BYTES].partition(b"\0")[0].decode(errors="replace")


def is_fake() -> bool:
    """Whether the CUDA runtime of this process is the fake one."""
    try:
        return hasattr(_library(), "fake_cuda_counts")
    except OSError:  # there is no CUDA at all
        return False


def not_emulated() -> dict[str, int]:
    """Launches in this process of kernels that the fake does not compute, by kernel; none on a real device."""
    if not is_fake():
        return {}
    library = _library()
    library.fake_cuda_counts.restype = ctypes.c_size_t
    size = library.fake_cuda_counts(None, ctypes.c_size_t(0))
    text = ctypes.create_string_buffer(size)
    library.fake_cuda_counts(text, ctypes.c_size_t(size))
    return {kernel: int(count) for count, kernel in sorted(NOT_EMULATED.findall(text.value.decode()))}


def packages() -> dict[str, str]:
    """Versions of the installed packages that take part."""
    every = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    first = {name: version for name, version in reversed(every) if PACKAGES.fullmatch(name)}  # first of the path wins
    return dict(sorted(first.items()))


def _library() -> Any:
    return ctypes.CDLL(f"libcudart.so.{LEAST_CUDA}")


def _integer(runtime: CudaRuntime, function: str, *arguments: Any) -> int:
    value = ctypes.c_int()
    runtime.call(function, ctypes.byref(value), *arguments)
    return value.value


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
