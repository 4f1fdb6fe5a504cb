"""Products by the unit for small matrices give the bits that vectors give: here in plain C++ or by
the machine's own, and by its instructions in emulation.
"""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int32
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwood.models.native import NativeModel, has_int8
from draftwood.native import compiler, library
from draftwood.native.matrix import Matrix, block_formats
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from native.test_block_formats import random_blocks
from native.test_matrices import forget, four_bit_weights, some

OUTPUTS, INPUTS = 37, 1280  # more groups than are kept unpacked
COUNTS = [*range(1, 17), 17, 40, 150]  # of rows
FROM_FLOATS = ["int8", "int4"]
LEAST = {"int4": 48, "Q6_K": 16}  # rows that take it, with one and with two scales of a group
AUTO, NEVER, ALWAYS = -1, 0, 1
needs_int8 = pytest.mark.skipif(
    not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products"
)
X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")


def floats(stored: Matrix) -> Tensor:
    """The weights of a matrix as a tensor."""
    return torch.from_numpy(stored.floats())


@contextmanager
def tiles(forced: int) -> Iterator[None]:
    library.library().draftwood_force_tiles(forced)
    try:
        yield
    finally:
        library.library().draftwood_force_tiles(AUTO)


def takes_tiles(matrix: Matrix, rows: int) -> bool:
    return bool(library.library().draftwood_takes_tiles(matrix.structure, rows))


def packed(format: str, inputs: int = INPUTS) -> Matrix:
    bias = some(OUTPUTS, seed=3)
    if format in FROM_FLOATS:
        return Matrix.pack(four_bit_weights(OUTPUTS, inputs) + 0.1, bias, format)
    return Matrix.pack(random_blocks(format, OUTPUTS, inputs), bias, "int8")


def both_ways(matrix: Matrix, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with tiles(NEVER):
        assert not takes_tiles(matrix, len(values))
        by_vectors = matrix.multiply(values)
    with tiles(ALWAYS):
        assert takes_tiles(matrix, len(values))
        return by_vectors, matrix.multiply(values)


def check_all_counts(format: str) -> None:
    """The comparison of all formats and counts of rows."""
    matrix, values = packed(format), some(max(COUNTS), INPUTS, seed=2)
    values[2] *= 50
    for count in COUNTS:
        by_vectors, by_unit = both_ways(matrix, values[:count])
        assert by_vectors.any(), "a comparison of zeros shows nothing"
        assert torch.equal(by_vectors, by_unit), f"{format}, {count} rows"


@pytest.mark.parametrize("format", [*block_formats(), *FROM_FLOATS])
def test_the_unit_gives_the_bits_of_vectors(format: str) -> None:
    check_all_counts(format)


@pytest.mark.parametrize("inputs", [5, 32, 96, 100, 330])
@pytest.mark.parametrize("count", [1, 6, 33])
def test_widths_need_not_be_whole_blocks(inputs: int, count: int) -> None:
    matrix = Matrix.pack(some(OUTPUTS, inputs, seed=1), None, "int8")
    by_vectors, by_unit = both_ways(matrix, some(count, inputs, seed=2))
    assert torch.equal(by_vectors, by_unit)


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "int8"])
def test_a_row_by_the_unit_gives_the_same_bits_beside_others(format: str) -> None:
    matrix, values = packed(format), some(40, INPUTS, seed=2)
    with tiles(ALWAYS):
        together = matrix.multiply(values)
        assert all(
            torch.equal(matrix.multiply(values[row : row + 1])[0], together[row])
            for row in (0, 11, 15, 16, 39)
        )
        # in another place of a block
        assert torch.equal(matrix.multiply(values.flip(0)).flip(0), together)


def test_one_unit_in_the_last_place_would_be_noticed() -> None:
    """Negative control: the same sums in another order differ in bits."""
    matrix, values = packed("int8"), some(4, INPUTS, seed=2)
    turned = Matrix.pack(floats(matrix).flip(1), some(OUTPUTS, seed=3), "int8")
    by_vectors, _ = both_ways(matrix, values)
    _, by_unit = both_ways(turned, values.flip(1).contiguous())
    assert torch.allclose(by_vectors, by_unit, rtol=0, atol=0.1 * float(by_vectors.abs().max()))
    assert not torch.equal(by_vectors, by_unit)


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_products_of_floats_stay_with_vectors(products: str) -> None:
    matrix = Matrix.pack(some(OUTPUTS, 64), None, products)
    with tiles(ALWAYS):
        assert not takes_tiles(matrix, 16)


def test_by_itself_the_unit_is_used_where_it_is_and_pays() -> None:
    here = bool(library.library().draftwood_has_tiles())
    for format, least in LEAST.items():
        matrix = packed(format)
        assert not takes_tiles(matrix, least - 1)
        assert takes_tiles(matrix, least) == here


def tree_of(nodes: int) -> DraftTree:
    return DraftTree.of(
        [1 + node % 7 for node in range(nodes)],
        [-1, *((node - 1) // 3 for node in range(1, nodes))],
    )


def all_logits(model: NativeModel) -> list[torch.Tensor]:
    """Logits of a prompt, single tokens, and trees of several sizes, one after the other."""
    session = model.start()
    found = [session.extend([3, 1, 4, 1, 5, 9, 2, 6] * 6).logits, session.extend([7]).logits]
    found += [session.forward(tree_of(nodes)).logits for nodes in (3, 8, 13, 16, 29)]
    return [*found, session.extend([5]).logits]


def check_a_model() -> None:
    """The comparison of a whole model's logits."""
    model = NativeModel(tiny_llama(0, layers=3), "int8")
    with tiles(NEVER):
        by_vectors = all_logits(model)
    with tiles(ALWAYS):
        by_unit = all_logits(model)
    for run, (a, b) in enumerate(zip(by_vectors, by_unit, strict=True)):
        assert torch.equal(a, b), f"run {run}"


@needs_int8
def test_a_models_logits_are_the_same_bits_with_and_without_the_unit() -> None:
    check_a_model()


AMX = ("-mavx512f", "-mavx512bw", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8")


@X86_64
def test_the_branch_of_the_units_instructions_compiles(tmp_path: Path) -> None:
    path = library.compiler()
    if path is None:
        pytest.skip("no C++ compiler")
    empty = tmp_path / "empty.cpp"
    empty.write_text("")
    command = [path, "-std=c++17", "-fsyntax-only", *AMX]
    if subprocess.run([*command, empty], capture_output=True, check=False).returncode:
        pytest.skip("this compiler does not know AMX")
    done = subprocess.run(
        [*command, compiler.SOURCES / "products_by_unit.cpp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.proof
@X86_64
def test_the_units_instructions_are_used_as_intel_defines_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In emulation, which refuses wrong shapes; a unit that loses a byte is noticed."""
    emulation = Path(__file__).parent / "emulated_amx.h"
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    flags = (*compiler.FLAGS, "-O0", "-include", str(emulation))
    for module in (library, compiler):  # names the library, and makes it
        monkeypatch.setattr(module, "FLAGS", flags)
    forget()
    try:
        assert library.library().draftwood_has_tiles()
        for format, least in LEAST.items():
            assert [takes_tiles(packed(format), rows) for rows in (1, least)] == [False, True]
        for format in [*block_formats(), *FROM_FLOATS]:
            check_all_counts(format)
        if has_int8(torch.device("cpu")):
            check_a_model()
        c_int32.in_dll(library.library(), "emulated_lost_bytes").value = 1
        with pytest.raises(AssertionError, match="1 rows"):
            check_all_counts("Q4_K")
        if has_int8(torch.device("cpu")):
            with pytest.raises(AssertionError, match="run 0"):
                check_a_model()
    finally:
        forget()
