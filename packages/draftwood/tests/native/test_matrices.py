"""Products in every format against the same products in float64, and the library built for an older
CPU.
"""

import hashlib
import platform
from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftwood.arrays import bits_of
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.matrix import LAYOUT, Chosen, Matrix
from draftwood.testing import tiny_llama

PRODUCTS = ("float32", "bfloat16", "int8", "int4")


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def four_bit_weights(outputs: int, inputs: int) -> torch.Tensor:
    """As a Q4_1 file has them, rounded to bfloat16."""
    chance = torch.Generator().manual_seed(7)
    levels = torch.randint(0, 16, (outputs, inputs // 32, 32), generator=chance)
    levels[..., 0], levels[..., 1] = 0, 15
    steps, offsets = (
        some(outputs, inputs // 32, 1, seed=1).abs() / 50 + 0.01,
        some(outputs, inputs // 32, 1, seed=2) / 5,
    )
    return (levels * steps + offsets).flatten(1).to(torch.bfloat16).float()


def fits_int4(weight: torch.Tensor) -> bool:
    return bool(library.library().draftwood_fits_int4(weight.data_ptr(), 0, *weight.shape, 2))


def product(
    products: str, weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor
) -> torch.Tensor:
    """Rows times weight, packed and multiplied by the library."""
    return Matrix.pack(weight, bias, products).multiply(rows)


def in_groups_of_bytes(values: torch.Tensor, half_scales: bool = False) -> torch.Tensor:
    """Each group of 32 rounded to 127ths of its largest value; those of weights are stored in 16
    bits.
    """
    padded = (
        torch.nn.functional.pad(values, (0, -values.shape[1] % 32)).double().unflatten(1, (-1, 32))
    )
    scale = padded.abs().amax(-1, keepdim=True) / 127
    scale = (scale * 1024).half().double() / 1024 if half_scales else scale
    return ((padded / scale).nan_to_num().round() * scale).flatten(1)[:, : values.shape[1]]


@pytest.mark.parametrize("rows", [1, 3, 8, 21])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (16, 32), (50, 100), (7, 5)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_floats(rows: int, outputs: int, inputs: int, biased: bool) -> None:
    weight, values = some(outputs, inputs, seed=1), some(rows, inputs, seed=2)
    bias = some(outputs, seed=3) if biased else None
    exact = torch.nn.functional.linear(
        values.double(), weight.double(), None if bias is None else bias.double()
    )
    assert torch.allclose(product("float32", weight, bias, values).double(), exact, atol=1e-5)
    halves = [part.bfloat16().double() for part in (values, weight)]
    exact = torch.nn.functional.linear(*halves, None if bias is None else bias.double())
    assert torch.allclose(product("bfloat16", weight, bias, values).double(), exact, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 8, 21])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (50, 100)])
def test_int8_is_the_product_of_numbers_rounded_group_by_group(
    rows: int, outputs: int, inputs: int
) -> None:
    weight, values = some(outputs, inputs, seed=1), some(rows, inputs, seed=2)
    exact = in_groups_of_bytes(values) @ in_groups_of_bytes(weight, half_scales=True).T
    own = product("int8", weight, None, values).double()
    assert (own - exact).norm() < 1e-5 * exact.norm()
    # so the comparison is sharp
    assert (own - values.double() @ weight.double().T).norm() > 2e-3 * exact.norm()


@pytest.mark.parametrize("rows", [1, 8, 13])
def test_four_bit_weights_are_read_back_as_they_were(rows: int) -> None:
    weight, values = four_bit_weights(48, 96), some(rows, 96, seed=2)
    assert fits_int4(weight)
    exact = in_groups_of_bytes(values) @ weight.double().T
    # bfloat16 rounded them
    assert (product("int8", weight, None, values).double() - exact).norm() < 4e-3 * exact.norm()


@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("outputs", [5, 40, 48])
@pytest.mark.parametrize("make", [some, four_bit_weights])
def test_halves_are_packed_as_the_floats_that_they_are(
    products: str, outputs: int, make: Callable[[int, int], torch.Tensor]
) -> None:
    halves = make(outputs, 96).bfloat16()
    for given in (halves, bits_of(halves)):
        own, wanted = (Matrix.pack(each, None, products) for each in (given, halves.float()))
        assert own.format == wanted.format
        for here, there in zip(own.memory, wanted.memory, strict=True):
            assert np.array_equal(here, there)
    other = Matrix.pack(halves.float() * 1.1, None, products)
    assert not np.array_equal(other.floats(), wanted.floats())


@pytest.mark.parametrize("products", PRODUCTS)
def test_outputs_are_read_in_any_order(products: str) -> None:
    matrix = Matrix.pack(some(50, 70), None, products)
    chosen = np.array([49, 3, 3, 17, 0, 48, 16, 2])
    assert np.array_equal(matrix.outputs(chosen), matrix.floats()[chosen])
    alone = [matrix.outputs(np.array([each]))[0] for each in range(50)]
    assert np.array_equal(matrix.floats(), np.stack(alone))


def test_other_weights_are_not_taken_for_four_bit_ones() -> None:
    assert not fits_int4(some(48, 96, seed=1))
    spoilt = four_bit_weights(48, 96)
    spoilt[40, 70] += 0.5 * (spoilt[40, 64:96].max() - spoilt[40, 64:96].min()) / 15
    assert not fits_int4(spoilt)
    assert not fits_int4(four_bit_weights(16, 64)[:, :40].contiguous())  # groups must be whole


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_row_does_not_depend_on_its_neighbours(products: str) -> None:
    weight, values = some(96, 160, seed=1), some(40, 160, seed=2)
    values[3] *= 50
    together = product(products, weight, None, values)
    for row in (0, 2, 17, 39):
        alone = product(products, weight, None, values[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_one_scale_for_all_rows_would_be_noticed() -> None:
    """Negative control: rounding a row by the largest of all rows changes what it gives."""
    weight, values = some(96, 160, seed=1), some(8, 160, seed=2)
    values[3] *= 20
    exact, scale = values @ weight.T, values.abs().max() / 127
    shared = ((values / scale).round() * scale) @ weight.T
    own = product("int8", weight, None, values)
    assert (own - exact)[0].norm() < 0.3 * (shared - exact)[0].norm()


@pytest.mark.parametrize("products", ["int8", "int4"])
def test_rows_and_weights_of_zeros_give_zeros(products: str) -> None:
    assert not product(products, four_bit_weights(16, 32), None, torch.zeros(3, 32)).any()
    assert not product(products, torch.zeros(16, 32), None, some(3, 32)).any()


def forget() -> None:
    library.library.cache_clear()
    library.key.cache_clear()


@pytest.mark.proof
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names levels of x86-64")
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_the_library_works_on_older_cpus_too(
    level: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """Without AVX-512 everything runs on other instructions: the answers are the same up to
    rounding.
    """
    exact = NativeModel(tiny_llama(0)).start().extend([1, 2, 3, 4]).logits
    weight, values = some(48, 96, seed=1), some(9, 96, seed=2)
    usual = [product(kind, weight, None, values) for kind in PRODUCTS]
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setenv("CXXFLAGS", "-O0")  # compiles in a fraction of the time
    monkeypatch.setattr(library, "TARGET", f"-march={level}")
    forget()
    try:
        assert torch.allclose(
            NativeModel(tiny_llama(0)).start().extend([1, 2, 3, 4]).logits, exact, atol=1e-5
        )
        here = [product(kind, weight, None, values) for kind in PRODUCTS]
    finally:
        forget()
    for own, other in zip(here, usual, strict=True):
        assert torch.allclose(own, other, atol=1e-5)


LAID_OUT = {
    "float32": "119f2376234aa808",
    "float16": "ba3d30285596853d",
    "bfloat16": "febd91707115acd4",
    "int8": "0dedfc0de57619f9",
    "int4": "b5fed6df5b59208d",
}


@pytest.mark.parametrize("products", LAID_OUT)
def test_the_layout_is_that_of_its_version(products: str) -> None:
    """Matrices are kept on disk: where this fails, raise ``LAYOUT`` and write the new digests."""
    weight = ((torch.arange(40 * 100) * 7919 % 1000 - 500) / 512).reshape(40, 100)
    content = b"".join(part.tobytes() for part in Matrix.pack(weight, None, products).memory)
    assert (LAYOUT, hashlib.sha256(content).hexdigest()[:16]) == (1, LAID_OUT[products])


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("stored", PRODUCTS)
def test_chosen_outputs_are_laid_out_as_their_floats_are(stored: str, products: str) -> None:
    drawn = np.random.default_rng(4)
    matrix = Matrix.pack(drawn.normal(size=(75, 96)).astype(np.float32), None, stored)
    chosen = drawn.permutation(75)[:50]
    found = Matrix.pack(Chosen(matrix.structure, chosen), None, products)
    wanted = Matrix.pack(matrix.outputs(chosen), None, products)
    others = Matrix.pack(matrix.outputs(chosen[::-1]), None, products)
    assert (found.format, found.structure.factor) == (wanted.format, wanted.structure.factor)
    assert all(map(np.array_equal, found.memory, wanted.memory))
    assert not all(map(np.array_equal, found.memory, others.memory))


@pytest.mark.parametrize("chosen", [[-1], [75], [3, 2**40, 4]])
def test_outputs_that_a_matrix_lacks_are_not_read(chosen: list[int]) -> None:
    matrix = Matrix.pack(np.ones((75, 96), np.float32), None, "int8")
    with pytest.raises(IndexError, match="has outputs 0 to 74, asked for"):
        matrix.outputs(np.array(chosen))
    assert matrix.outputs(np.array([], np.int64)).shape == (0, 96)
