"""What CUDA offers a process on this machine: a driver that is new enough, a device, and free memory on it.

Asked of the CUDA runtime library, before a session is opened: what ONNX Runtime reports of these is an error number, or
nothing. Every reason not to use CUDA names its cause and a fix.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from service.errors import StartupError
from service.settings.engine_settings import NO_DEVICE, VISIBLE

DRIVERS = {12: 525, 13: 580}  # the first driver of each major version of CUDA


def load_runtime(cuda_major: int) -> Any:
    """The CUDA runtime library that onnxruntime-gpu is linked to, which may be loaded already. Raises StartupError."""
    name = f"libcudart.so.{cuda_major}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise StartupError(
            f"the CUDA libraries of onnxruntime-gpu are missing ({name}: {error}); "
            "fix: install them with pip install -r requirements/gpu.in, or onnxruntime-gpu[cuda,cudnn]"
        ) from None


def check_device(runtime: Any, *, cuda_major: int, weight_bytes: int) -> None:
    """Raises StartupError when this process has no device, or one without room for the weights.

    runtime: of `load_runtime`. A process uses the first device that CUDA lets it see.
    """
    _check_driver(runtime, cuda_major)
    count = ctypes.c_int()
    status = runtime.cudaGetDeviceCount(ctypes.byref(count))
    if status or not count.value:
        visible = os.environ.get(VISIBLE)
        hidden = f"; {VISIBLE} lets the server see fewer" if visible == NO_DEVICE else f" with {VISIBLE}={visible}"
        seen = "" if visible is None else hidden
        because = f" (CUDA error {status})" if status else ""
        raise StartupError(
            f"CUDA finds no device{seen}{because}; fix: name one of those that nvidia-smi -L lists with "
            "--cuda-devices, counted from 0, and start a container with --gpus all"
        )
    free, total = memory_info(runtime)
    if weight_bytes > free:
        raise StartupError(
            f"the device has {free / 1e6:,.0f} MB free of {total / 1e6:,.0f} MB, and the weights take "
            f"{weight_bytes / 1e6:,.0f} MB; fix: end other programs on it (nvidia-smi lists them), or name another "
            "device with --cuda-devices"
        )


def memory_info(runtime: Any) -> tuple[int, int]:
    """Bytes of the device that are free, and all. Raises StartupError."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if status := runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        raise StartupError(
            f"the device cannot be used (cudaMemGetInfo: CUDA error {status}); fix: look for errors of the device "
            "with nvidia-smi -q and in the kernel's log, and reset it or name another one with --cuda-devices"
        )
    return free.value, total.value


def _check_driver(runtime: Any, cuda_major: int) -> None:
    version = ctypes.c_int()
    status = runtime.cudaDriverGetVersion(ctypes.byref(version))
    need = f"driver {DRIVERS.get(cuda_major, DRIVERS[max(DRIVERS)])}"
    if status or not version.value:
        raise StartupError(
            f"no NVIDIA driver is installed; fix: install {need} or newer, or start the container with --gpus all"
        )
    major, minor = version.value // 1000, version.value % 1000 // 10
    if major < cuda_major:
        raise StartupError(
            f"driver too old: found CUDA {major}.{minor}, need at least {cuda_major}.0 ({need} or newer); "
            f"fix: update the driver, or install an onnxruntime-gpu that was built for CUDA {major}"
        )
