"""Names of the hardware that a figure was measured on."""

import platform
import sys
from pathlib import Path
from typing import Any


def processor() -> str:
    """Name of the CPU, as it reports it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device_name(device: Any) -> str:
    """Name of the GPU or CPU that a model runs on."""
    if device.type == "cuda":  # the device is PyTorch's own, which is imported
        return sys.modules["torch"].cuda.get_device_name(device)
    return processor() if device.type == "cpu" else f"{device.type} of {processor()}"
