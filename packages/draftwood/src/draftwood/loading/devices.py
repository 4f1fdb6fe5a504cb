"""The device that a model runs on; PyTorch is asked where there may be another than the CPU."""

import os
import sys
from pathlib import Path
from typing import Any

from draftwood.models.model import Cpu, Device
from draftwood.optional import backend, is_there

OF_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
"""Files of GPUs that PyTorch calls CUDA devices, on Linux."""


def device_of(device: Any = None) -> Device:
    """Resolve a device: by default CUDA if there is one, else the CPU.

    Args:
        device: as PyTorch calls it; its own devices are taken too.

    Raises:
        ValueError: for one that cannot be had.
        ModuleNotFoundError: for another than the CPU without PyTorch.
    """
    if device is None and not may_have_gpu():
        return Cpu()
    if device is not None and str(device) in ("cpu", "cpu:0"):
        return Cpu()
    found = backend("the GPU here" if device is None else f"the device {device}").device(device)
    return Cpu() if found.type == "cpu" else found


def may_have_gpu() -> bool:
    """True if PyTorch may find a CUDA device; it is not imported for that."""
    if "torch" in sys.modules:
        return sys.modules["torch"].cuda.is_available()
    if not is_there("torch") or sys.platform == "darwin":
        return False
    if sys.platform == "win32":
        return Path(os.environ.get("SYSTEMROOT", ""), "System32", "nvcuda.dll").exists()
    return any(Path(name).exists() for name in OF_GPUS)
