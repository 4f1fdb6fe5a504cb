"""Trainers take the numbers that the machine multiplies fast."""

import pytest
import torch

from draftwood_train import precision


@pytest.mark.parametrize(
    ("gpu", "cpu", "taken"),
    [(True, False, "bfloat16"), (False, True, "bfloat16"), (False, False, "float32")],
)
def test_bfloat16_is_taken_where_something_has_it(
    gpu: bool, cpu: bool, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: cpu)
    assert precision.fast_precision() == taken


def test_the_cpu_is_asked_in_this_version_of_torch() -> None:
    assert precision.cpu_has_bfloat16() in (True, False)
