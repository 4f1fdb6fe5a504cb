"""The machine: its processor, and how fast it can read memory, which bounds plain decoding."""

import os
import platform
import time
from pathlib import Path

import torch

SIZE = 1 << 30


class Machine:
    """This machine; its memory is measured anew at every call, for on shared hosts the bandwidth comes and goes."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.numbers = torch.ones(SIZE // 4)
        self.fixed = {"processor": processor(), "cores": os.cpu_count()}

    def __call__(self) -> dict[str, object]:
        """Name and cores of the processor, and the bandwidth of so many threads in GB/s."""
        return self.fixed | {"bandwidth_gb_per_s": round(bandwidth(self.numbers, self.threads) / 1e9, 2)}


def processor() -> str:
    """The processor's name and the vector extensions that matter here."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    found = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in text.split()]
    return ", ".join([names[0] if names else platform.processor() or platform.machine(), *found])


def bandwidth(numbers: torch.Tensor, threads: int, rounds: int = 5) -> float:
    """Bytes per second at which so many threads read a tensor far greater than any cache; the best of some rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = []
        for _ in range(rounds):
            since = time.perf_counter()
            numbers.sum()
            times.append(time.perf_counter() - since)
    finally:
        torch.set_num_threads(before)
    return numbers.nbytes / min(times)
