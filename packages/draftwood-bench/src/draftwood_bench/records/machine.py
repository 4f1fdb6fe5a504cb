"""Describe the machine: its processor and its memory bandwidth, which bounds plain decoding."""

import platform
import time
from pathlib import Path

import torch

from draftwood_bench.records.files import Record, RunInfo


def processor() -> str:
    """The processor's name and the vector extensions that matter here."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else ""
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith("model name")
    ]
    found = [
        flag
        for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
        if flag in text.split()
    ]
    return ", ".join([names[0] if names else platform.processor() or platform.machine(), *found])


def bandwidth(numbers: torch.Tensor, threads: int) -> float:
    """Measure the bytes per second at which ``threads`` threads read a tensor larger than any
    cache.

    The best of five rounds.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = []
        for _ in range(5):
            since = time.perf_counter()
            numbers.sum()
            times.append(time.perf_counter() - since)
    finally:
        torch.set_num_threads(before)
    return numbers.nbytes / min(times)


def roofline(
    speed: float | None, bandwidth: float | None, weight_bytes: int | None
) -> float | None:
    """Tokens per second over the greatest speed that the memory bus allows.

    There, one reading of the weights per token fills the bus.
    """
    return speed * weight_bytes / bandwidth if speed and bandwidth and weight_bytes else None


def weight_bytes(record: Record, run: RunInfo) -> int | None:
    """Bytes of weights that the record's system reads for every token."""
    if record.is_peer:
        return run.peers.get(record.method.removeprefix("peer:"), {}).get("weight_bytes")
    return run.weight_bytes
