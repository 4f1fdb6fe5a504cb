"""Products give the same bits on every kind of CPU, whatever instructions run them.

Matrices are packed here; a small program, compiled for other CPUs, multiplies them.
"""

import ctypes
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.native import library
from draftwood.native.compiler import FLAGS, SOURCES, compiler, processor
from draftwood.native.matrix import Blocks, Matrix, block_formats
from native.test_block_formats import random_blocks
from native.test_matrices import four_bit_weights, some

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PROGRAM = Path(__file__).with_name("multiply.cpp")
EMULATED_VNNI = Path(__file__).with_name("emulated_vnni.h")
PRODUCTS = ("products.cpp", "products_of_bytes.cpp", "products_by_unit.cpp")
ARM_COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
EMULATOR = next((path for path in map(shutil.which, EMULATORS) if path), None)
needs_arm = [
    pytest.mark.skipif(shutil.which(ARM_COMPILER) is None, reason=f"no {ARM_COMPILER}"),
    pytest.mark.skipif(EMULATOR is None, reason=f"no {' or '.join(EMULATORS)}"),
]
# all codes the smallest, the largest, and those of the largest numbers in tables
EXTREMES = (0x00, 0xFF, 0x77, 0xAA)
ROWS = (1, 3, 13)  # alone, few, and more than a block of eight

# Flags, what the CPU must have, and what integers then run on.
X86 = {
    "plain": ("-march=x86-64", "", "plain loops"),
    "fused": ("-march=x86-64-v2 -mavx -mfma -mf16c", "fma f16c", "plain loops"),
    "avx2": ("-march=x86-64-v3", "avx2 fma f16c bmi2", "AVX2"),
    "avx-vnni": ("-march=x86-64-v3 -mavxvnni", "avx2 fma f16c bmi2 avx_vnni", "AVX-VNNI"),
    "avx-vnni, emulated": (
        f"-march=x86-64-v3 -include {EMULATED_VNNI}",
        "avx2 fma f16c bmi2",
        "AVX-VNNI",
    ),
    "avx-512": ("-march=x86-64-v4", "avx512f avx512bw avx512dq avx512vl", "AVX-512"),
    "vnni": ("-march=x86-64-v4 -mavx512vnni", "avx512bw avx512_vnni", "AVX-512 VNNI"),
}
ARM = {
    "plain": ("-march=armv8-a", "plain loops"),
    "dotprod": ("-march=armv8.2-a+dotprod", "NEON dot products"),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm", "NEON I8MM"),
}


def extreme_blocks() -> Blocks:
    """Q8_0 with the largest bytes of both signs, whose sums leave 16 bits."""
    blocks = random_blocks("Q8_0", 16)
    codes = blocks.stored.reshape(-1, 34)
    codes[::3, 2:], codes[1::3, 2:] = 0x80, 0x7F
    return blocks


def filled(format: str, codes: int) -> Matrix:
    """A matrix whose codes all have these bits: sums of products grow as far as they may."""
    matrix = Matrix.pack(random_blocks(format, 16), None, "int8")
    matrix.memory[0].view(np.uint8)[:] = codes
    if format == "IQ2_XXS":  # a third plane, of signs
        matrix.memory[0].view(np.uint8).reshape(-1, 3, 64)[:, 2] = 0
    return matrix


@cache
def cases() -> list[tuple[Matrix, torch.Tensor]]:
    """Matrices in all formats but bfloat16, which some CPUs round otherwise, and rows."""
    matrices = [
        Matrix.pack(random_blocks(format, 37), None, products)
        for format in block_formats()
        for products in ("int8", "float32")
    ]
    matrices += [Matrix.pack(some(50, 100, seed=1), None, "int8")]
    matrices += [Matrix.pack(some(50, 100, seed=1), None, "float32")]
    matrices += [Matrix.pack(four_bit_weights(48, 96), None, "int8")]
    made = [(m, some(rows, m.shape[1], seed=2) * 3) for m in matrices for rows in ROWS]
    flat = torch.ones(2, 512) * torch.tensor([[1.0], [-1.0]])  # every input is 127 or -127
    extremes = [filled(format, codes) for format in block_formats() for codes in EXTREMES]
    extremes.append(Matrix.pack(extreme_blocks(), None, "int8"))
    return made + [(matrix, flat[:, : matrix.shape[1]]) for matrix in extremes]


@cache
def products_here() -> list[torch.Tensor]:
    return [matrix.multiply(rows) for matrix, rows in cases()]


def written(case: tuple[Matrix, torch.Tensor]) -> bytes:
    """A case as the program reads it."""
    matrix, rows = case
    said, sizes = matrix.structure, library.integers([0, 0])
    library.library().draftwood_matrix_sizes(said, sizes)
    head = struct.pack(
        "4if3i",
        *(said.format, said.outputs, said.inputs, said.encoding, said.factor),
        *(len(rows), *sizes),
    )
    parts = [ctypes.string_at(said.weights, sizes[0]), ctypes.string_at(said.scales, sizes[1])]
    return b"".join([head, *parts, rows.contiguous().numpy().tobytes()])


def results_elsewhere(
    folder: Path,
    compiler: str,
    flags: Sequence[str],
    run: Sequence[str],
    sources: Path = SOURCES,
) -> tuple[str, list[torch.Tensor]]:
    """The instructions that the program names, and its products of all cases."""
    program = str(folder / "multiply")
    files = [str(PROGRAM), *(str(sources / name) for name in PRODUCTS)]
    command = [compiler, *FLAGS, "-O0", "-w", *flags, f"-I{sources}", *files, "-o", program]
    subprocess.run(command, check=True)
    given, found = folder / "cases", folder / "results"
    given.write_bytes(b"".join(map(written, cases())))
    command = [*run, program, str(given), str(found)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    numbers = torch.frombuffer(bytearray(found.read_bytes()), dtype=torch.float32)
    shapes = [(len(rows), matrix.shape[0]) for matrix, rows in cases()]
    parts = numbers.split([rows * outputs for rows, outputs in shapes])
    return said, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def differing(found: Sequence[torch.Tensor]) -> list[str]:
    """The formats of the cases whose results have other bits here."""
    parts = zip(cases(), products_here(), found, strict=True)
    return sorted({m.format for (m, _), here, there in parts if not torch.equal(here, there)})


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "avx2" else pytest.mark.proof) for name in X86]
)
def test_all_instructions_of_x86_give_the_same_bits(name: str, tmp_path: Path) -> None:
    flags, needs, instructions = X86[name]
    missing = set(needs.split()) - set(processor().split())
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    said, found = results_elsewhere(tmp_path, str(compiler()), flags.split(), [])
    assert said == instructions
    assert differing(found) == []


@pytest.mark.proof
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_arm) for name in ARM])
def test_all_instructions_of_arm_give_the_same_bits(name: str, tmp_path: Path) -> None:
    flags, instructions = ARM[name]
    run = [str(EMULATOR), "-cpu", "max"]
    said, found = results_elsewhere(tmp_path, ARM_COMPILER, [flags, "-static"], run)
    assert said == instructions
    assert differing(found) == []


@pytest.mark.proof
@needs_compiler
def test_a_wrong_zero_point_would_be_noticed(tmp_path: Path) -> None:
    """Negative control: the program is compiled against a header that subtracts 127."""
    wrong = shutil.copytree(SOURCES, tmp_path / "wrong")
    text = (wrong / "matrices.h").read_text()
    assert "= -128 * totals[part]" in text
    (wrong / "matrices.h").write_text(text.replace("= -128 *", "= -127 *"))
    flags = ["-march=x86-64-v2"] if platform.machine() == "x86_64" else []
    _, found = results_elsewhere(tmp_path, str(compiler()), flags, [], wrong)
    assert {"Q8_0", "Q6_K"} <= set(differing(found))
