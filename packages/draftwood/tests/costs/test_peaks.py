"""Peaks of a machine, and shares of them."""

import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest

from draftwood.costs.peaks import Peaks, measure_peaks, shares_of
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.compiler import SOURCES, compiler, processor
from draftwood.testing import tiny_llama

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
PEAKS = Peaks(1e9, 1e10, "some")
READER = """
#include "peaks.cpp"
namespace draftwood {
TeamTurn::TeamTurn(int64_t count, int threads)
    : count(count), threads(threads), workshop(nullptr) {}
TeamTurn::~TeamTurn() {}
void TeamTurn::run(Job& job) const {
    for (int task = 0; task < job.tasks(0); task++) job.perform(0, task);
}
}
int main() {
    alignas(64) static char data[CHUNK + 64];
    return !(draftwood_read_peak(data + 8, CHUNK, 1) > 0);
}
"""


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=2), products="int8")


def test_products_of_a_row_are_counted_once_for_each_weight(model: NativeModel) -> None:
    every = (*model.weights.matrices, model.weights.structure.lm_head)
    assert model.weights.multiply_adds == sum(each.outputs * each.inputs for each in every) > 0


def test_shares_are_of_the_time_of_products(model: NativeModel) -> None:
    """Twice the time, half the share; products count nodes, memory does not."""
    weights, seconds = model.weights, np.array([[0.2, 9, 9, 9], [0.4, 9, 9, 9]])
    found = shares_of(model, {1: seconds, 2: seconds, 3: 2 * seconds}, PEAKS)
    assert found[1].memory == pytest.approx(weights.weight_bytes / 0.3 / 1e9)
    assert found[1].products == pytest.approx(weights.multiply_adds / 0.3 / 1e10)
    assert found[2].products == pytest.approx(2 * weights.multiply_adds / 0.3 / 1e10)
    assert found[2].memory == found[1].memory == pytest.approx(2 * found[3].memory)


def test_products_that_others_make_have_no_share(model: NativeModel) -> None:
    seconds = np.ones((1, 4))
    without = Peaks(1e9, 0.0, "")
    assert shares_of(model, {1: seconds}, without)[1].products is None
    halves = NativeModel(tiny_llama(0), products="bfloat16")
    assert shares_of(halves, {1: seconds}, PEAKS)[1].products is None


def test_peaks_are_above_what_anything_reaches() -> None:
    found = measure_peaks()
    assert found.bytes_per_second > 5e8
    if library.instructions(True):
        assert found.products_per_second > 1e9


@pytest.mark.skipif(
    platform.machine() != "x86_64" or " avx2 " not in processor(), reason="this CPU lacks avx2"
)
def test_memory_is_read_from_any_address(tmp_path: Path) -> None:
    """Aligned loads of 32 bytes, which AVX2 has, would end the process."""
    source, program = tmp_path / "read.cpp", tmp_path / "read"
    source.write_text(READER)
    flags = ["-std=c++17", "-O1", "-w", "-march=x86-64-v3", f"-I{SOURCES}"]
    subprocess.run([str(compiler()), *flags, str(source), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0
