"""NumPy's bfloat16, as bits, is PyTorch's."""

import numpy as np
import torch

from draftwood.arrays import from_bfloat16, to_bfloat16


def test_numbers_are_rounded_to_the_nearest_bfloat16_and_to_even_where_two_are_as_near() -> None:
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    odd = torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, 6e4, float("inf"), float("-inf")])
    numbers = torch.cat([numbers, odd])
    ours = from_bfloat16(to_bfloat16(numbers.numpy()))
    assert ours.tolist() == numbers.bfloat16().float().tolist()


def test_what_is_no_number_stays_so() -> None:
    assert np.isnan(from_bfloat16(to_bfloat16(np.array([np.nan], np.float32)))).all()
