"""Matrices in the formats of GGUF files hold what the ``gguf`` package reads."""

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood.native.matrix import Blocks, Matrix, block_formats
from native.test_matrices import in_groups_of_bytes, some

INPUTS = 512
FORMATS = block_formats()
# Places of the 16-bit scales in a block; other bytes may be anything.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ3_XXS": (0,),
}


def floats(stored: Matrix | Blocks) -> Tensor:
    """The weights of a matrix or of blocks as a tensor."""
    return torch.from_numpy(stored.floats())


def random_blocks(
    format: str, outputs: int, inputs: int = INPUTS, seed: int = 0, spread: float = 0.01
) -> Blocks:
    """Any bytes, with scales of usual sizes."""
    chance = np.random.default_rng(seed)
    inputs_of_block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]]
    blocks = chance.integers(0, 256, (outputs * inputs // inputs_of_block, size), dtype=np.uint8)
    for place in HALVES.get(format, ()):
        scales = chance.normal(0, spread, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if format == "MXFP4":
        blocks[:, 0] = chance.integers(117, 124, len(blocks))
    return Blocks(format, blocks.reshape(outputs, -1), inputs)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_the_formats_that_people_keep_models_in_are_read() -> None:
    assert {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q3_K", "Q2_K", "IQ4_XS"} < set(FORMATS)
    assert {"IQ4_NL", "MXFP4", "IQ2_XXS", "IQ3_XXS", "Q4_1", "Q5_0", "Q5_1"} < set(FORMATS)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("outputs", [32, 37])
def test_what_is_stored_is_what_the_file_says(format: str, outputs: int) -> None:
    blocks = random_blocks(format, outputs)
    stored, said = (
        floats(Matrix.pack(blocks, None, "int8")),
        floats(blocks),
    )
    # the same numbers, up to how the last bit of a product and a sum is rounded
    size = said.abs().amax(1, keepdim=True)
    assert ((stored - said).abs() <= 2e-7 * size).all()
    assert (stored != 0).any(1).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 8, 13])
def test_products_in_floats_are_those_of_the_files_numbers(format: str, rows: int) -> None:
    blocks, values, bias = random_blocks(format, 48), some(rows, INPUTS, seed=2), some(48, seed=3)
    exact = values.double() @ floats(blocks).double().T + bias.double()
    assert error(Matrix.pack(blocks, bias, "float32").multiply(values), exact) < 1e-6


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 13])
def test_products_in_bytes_round_nothing_but_the_rows(format: str, rows: int) -> None:
    blocks, values = random_blocks(format, 48), some(rows, INPUTS, seed=2)
    exact = in_groups_of_bytes(values) @ floats(blocks).double().T
    own = Matrix.pack(blocks, None, "int8").multiply(values)
    assert error(own, exact) < 1e-6
    assert error(own, values.double() @ floats(blocks).double().T) > 1e-4  # a sharp comparison


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("products", ["float32", "int8"])
def test_a_row_gives_the_same_bits_beside_others(format: str, products: str) -> None:
    matrix, values = Matrix.pack(random_blocks(format, 40), None, products), some(21, INPUTS)
    together = matrix.multiply(values)
    assert all(torch.equal(matrix.multiply(values[i : i + 1])[0], together[i]) for i in (0, 7, 20))


@pytest.mark.parametrize("format", FORMATS)
def test_memory_is_that_of_the_file(format: str) -> None:
    """But for grids, whose entries are stored one by one."""
    blocks = random_blocks(format, 64)
    most = {"IQ2_XXS": 1.65, "IQ3_XXS": 1.42}.get(format, 1.1)
    assert Matrix.pack(blocks, None, "int8").weight_bytes <= most * blocks.stored.nbytes


def test_outputs_come_in_the_order_asked_for() -> None:
    blocks = random_blocks("Q4_K", 48)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    turned = Blocks("Q4_K", blocks.stored, INPUTS, order.numpy())
    assert torch.equal(floats(turned), floats(blocks)[order])
    exact = floats(Matrix.pack(blocks, None, "int8"))
    assert torch.equal(floats(Matrix.pack(turned, None, "int8")), exact[order])
    assert torch.equal(floats(Matrix.pack(turned[16:37], None, "int8")), exact[order[16:37]])
    assert torch.equal(floats(Matrix.pack(blocks[5:9], None, "int8")), exact[5:9])


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_floats_of_a_file_stay_what_they_are(format: str) -> None:
    weight = some(20, 64).to(
        {"F32": torch.float32, "F16": torch.float16}.get(format, torch.bfloat16)
    )
    stored = weight.view(torch.uint8).numpy()
    blocks = Blocks(format, stored, 64)
    assert torch.equal(floats(blocks), weight.float())
    assert torch.equal(floats(Matrix.pack(blocks, None, "int8")), weight.float())
    assert Matrix.pack(blocks, None, "int8").format == format
