"""A CTC head sees what it says it sees, in training and with a cache alike."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ctc_heads import CONFIG, drafted, head


def test_rows_in_pieces_equal_rows_at_once_and_frames_leave_no_trace() -> None:
    net = head()
    rows = torch.randn(70, 32)
    torch.testing.assert_close(
        drafted(net, rows, (60, 1, 5, 4)), drafted(net, rows, (70,)), atol=1e-5, rtol=1e-5
    )


def test_frames_see_the_window_each_other_and_nothing_else() -> None:
    net, rows = head(window=3), torch.randn(8, 32)
    before = drafted(net, rows, (8,))
    changed = rows.clone()
    changed[:5] += 1.0
    assert torch.equal(drafted(net, changed, (8,)), before)
    changed = rows.clone()
    changed[5] += 1.0
    assert not torch.allclose(drafted(net, changed, (8,)), before, atol=1e-3)
    with torch.no_grad():
        net.frame_bias[4] += 1.0
    after = drafted(net, rows, (8,))
    assert (after - before).abs().amax(-1).min() > 1e-3  # all frames saw the fifth change


def test_linear_frames_see_the_newest_row_alone() -> None:
    net, rows = head(form="linear"), torch.randn(6, 32)
    before = drafted(net, rows, (6,))
    assert torch.equal(drafted(net, rows * torch.tensor([9.0] * 5 + [1.0])[:, None], (6,)), before)
    with torch.no_grad():
        net.frame_bias[4] += 1.0
    after = drafted(net, rows, (6,))
    assert torch.equal(after[:4], before[:4])
    assert not torch.equal(after[4], before[4])


def test_the_root_is_read_where_the_head_says_so() -> None:
    states, tokens = torch.randn(3, 32), torch.randn(3, 32)
    assert torch.equal(head(reads_root=False).rows(states, tokens), states)
    assert not torch.allclose(head().rows(states, tokens), head().rows(states, -tokens))


def test_the_blank_is_the_last_symbol() -> None:
    net, frames, rows = head(), torch.randn(5, 32), torch.randn(11, 32)
    found = net.log_probs(frames, rows)
    scores = frames @ rows.T, (frames @ net.blank)[:, None]
    torch.testing.assert_close(found, torch.cat(scores, dim=-1).log_softmax(-1))
    first = torch.cat(scores[::-1], dim=-1).log_softmax(-1)
    assert not torch.allclose(found, first, atol=0.1)  # negative control: the blank before all
    torch.testing.assert_close(net.symbols(frames, scores[0]), found)
    assert head(has_blank=False).log_probs(frames, rows).shape == (5, 11)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"frames": 0}, "at least one frame"),
        ({"reads": ()}, "at least one layer"),
        ({"layers": 0}, "frames have at least one layer"),
        ({"layers": 2, "form": "linear"}, "linear ones no more"),
        ({"pairwise": 4}, "frames without a blank"),
        ({"pairwise": 4, "has_blank": False, "candidates": 0}, "at least one candidate"),
        ({"form": "round"}, "layer or linear"),
        ({"window": 0}, "at least one row"),
    ],
)
def test_a_head_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **wrong)
