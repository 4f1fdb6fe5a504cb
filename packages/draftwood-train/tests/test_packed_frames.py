"""Frames see in training what they see with a cache."""

import pytest
import torch

from ctc_heads import drafted, head
from draftwood_torch.heads.ctc import CtcHead
from draftwood_train.packed_frames import PackedFrames


def packed(net: CtcHead, rows: torch.Tensor, anchors: list[int]) -> torch.Tensor:
    """Frames after these rows, as training has them."""
    window = len(rows) if net.config.window is None else net.config.window
    at, places = torch.tensor(anchors), torch.arange(len(rows))
    back = at[:, None] - places
    count = net.config.frames
    positions = torch.cat([places, (at[:, None] + 2 + torch.arange(count)).flatten()])
    attend = PackedFrames(count, ((back >= 0) & (back < window))[None])
    frames = net(rows[None], net.born(rows[at]).flatten(0, 1)[None], positions[None], attend)
    return frames[0].unflatten(0, (-1, count))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("form", "layers"), [("layer", 1), ("layer", 2), ("linear", 1)])
def test_training_and_drafting_see_the_same(form: str, layers: int, window: int | None) -> None:
    net = head(form=form, window=window, layers=layers)
    rows = net.rows(torch.randn(9, 32), torch.randn(9, 32))
    found = packed(net, rows, [2, 5, 8])
    for number, anchor in enumerate((2, 5, 8)):
        wanted = drafted(net, rows[: anchor + 1], (anchor + 1,))
        torch.testing.assert_close(found[number], wanted, atol=1e-5, rtol=1e-5)
