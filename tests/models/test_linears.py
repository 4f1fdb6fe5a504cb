"""Linear layers of every kind, and what 8-bit ones promise about single rows."""

import pytest
import torch

from draftwood.models.linears import best_kind, decode, encode, has_int8, linear, require_int8

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not has_int8(CPU), reason="this CPU has no fast 8-bit products")


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run(kind, weights, biases, rows: torch.Tensor) -> torch.Tensor:
    product = linear(kind, weights, biases)
    encoded, scale = encode(kind, weights[0].dtype, rows)
    return decode(kind, product(encoded), scale, product.bias)


@pytest.mark.parametrize("kind", ["plain", "packed"])
@pytest.mark.parametrize("biased", [False, True])
def test_joined_layers_stand_side_by_side(kind, biased: bool) -> None:
    weights = [some(24, 32, seed=1), some(8, 32, seed=2)]
    biases = [some(24, seed=3), some(8, seed=4)] if biased else [None, None]
    rows = some(5, 32, seed=5)
    parts = [torch.nn.functional.linear(rows, w, b) for w, b in zip(weights, biases, strict=True)]
    assert torch.allclose(run(kind, weights, biases, rows), torch.cat(parts, dim=-1), atol=1e-5)


@needs_int8
@pytest.mark.parametrize("biased", [False, True])
def test_int8_is_the_product_of_rounded_numbers(biased: bool) -> None:
    weight, rows = some(48, 64, seed=1), some(7, 64, seed=2)
    bias = some(48, seed=3) if biased else None
    scales, largest = weight.abs().amax(-1) / 127, rows.abs().amax(-1, keepdim=True) / 127
    levels = (rows / largest + 128.5).floor() - 128
    exact = levels.double() @ (weight / scales[:, None]).round().double().T * largest * scales
    exact = exact if bias is None else exact + bias
    assert torch.allclose(run("int8", [weight], [bias], rows).double(), exact, atol=1e-5)


@needs_int8
def test_an_int8_row_does_not_depend_on_its_neighbours() -> None:
    weight, rows = some(96, 160, seed=1), some(64, 160, seed=2)
    together = run("int8", [weight], [None], rows)
    for row in (0, 17, 63):
        assert torch.equal(run("int8", [weight], [None], rows[row : row + 1])[0], together[row])


@needs_int8
def test_one_scale_for_all_rows_would_be_noticed() -> None:
    """Negative control: rounding a row by the largest of all rows changes what it gives."""
    weight, rows = some(96, 160, seed=1), some(8, 160, seed=2)
    rows[3] *= 20
    scale = rows.abs().max() / 127
    shared = ((rows / scale).round() * scale) @ weight.T
    exact = rows @ weight.T
    own = run("int8", [weight], [None], rows)
    assert (own - exact)[0].norm() < 0.3 * (shared - exact)[0].norm()


@needs_int8
def test_rows_of_zeros_stay_zero() -> None:
    assert not run("int8", [some(16, 32)], [None], torch.zeros(3, 32)).any()


def test_kinds_by_device_and_type() -> None:
    assert best_kind(torch.device("cuda"), torch.bfloat16) == "plain"
    assert best_kind(CPU, torch.float64) == "plain"
    assert best_kind(CPU, torch.float32) in ("packed", "plain")
    with pytest.raises(ValueError, match="int8 runs on CPUs only, not on cuda"):
        require_int8(torch.device("cuda"))


def test_a_cpu_without_fast_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ValueError, match="AVX-512 VNNI"):
        require_int8(CPU)
