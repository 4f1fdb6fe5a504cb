"""Names of the hardware that a figure was measured on."""

import platform
from pathlib import Path

import torch


def processor() -> str:
    """The CPU's name as it gives it itself."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """The name of what a model runs on: a GPU's own, or the CPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor() if device.type == "cpu" else f"{device.type} of {processor()}"
