"""The default method of a draft model: the fastest by what passes cost and what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftwood.costs import calibration
from draftwood.costs.calibration import Calibration, Key, store
from draftwood.costs.curve import Curve
from draftwood.methods.choice import estimates, fastest, speed_up
from draftwood.testing import TableModel

FREE, DEAR = Curve((1, 65), (1.0, 1.0)), Curve((1, 65), (1.0, 33.0))


def calibrated(curve: Curve | None) -> Calibration:
    return Calibration(TableModel(torch.eye(4)), curve=curve)  # type: ignore[arg-type]


def test_a_chain_is_worth_what_its_tokens_cost() -> None:
    """Two tokens, each accepted every second time: 1.75 tokens in 1.2 + 2 * 0.1 passes."""
    target = Curve((1, 3), (1.0, 1.2))
    found = speed_up([(0,), (0, 0)], target, lambda nodes: 0.1, (0.5,))
    assert found == pytest.approx(1.75 / 1.4)


def test_siblings_add_up_and_share_a_pass_of_the_draft_model() -> None:
    """One of the root's two children is accepted in 8 of 10 cases: 1.8 tokens."""
    found = speed_up([(0,), (1,)], FREE, lambda nodes: 0.5 * nodes, (0.6, 0.2))
    assert found == pytest.approx(1.8 / 1.5)
    deeper = speed_up([(0,), (1,), (1, 0)], FREE, lambda nodes: 0.5 * nodes, (0.6, 0.2))
    assert deeper == pytest.approx((1.8 + 0.2 * 0.6) / (1.0 + 0.5 + 1.0))


def test_where_nodes_are_free_a_tree_is_chosen_and_where_they_are_dear_a_chain() -> None:
    cheap = lambda nodes: 0.01 * FREE(nodes)  # noqa: E731
    free, dear = estimates(FREE, cheap), estimates(DEAR, cheap)
    assert free["sequoia"] > free["speculative"]
    assert dear["speculative"] > dear["sequoia"]
    assert {"speculative", "rsd-c", "sequoia"} <= free.keys()
    assert "auto" not in free
    draft = Curve((1, 65), (0.01, 0.01))
    assert fastest(calibrated(FREE), calibrated(draft)) in ("sequoia", "rsd-c")
    assert fastest(calibrated(DEAR), calibrated(draft)) == "speculative"


def test_nothing_is_measured_where_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*given: object) -> None:
        raise AssertionError("a curve was measured")

    monkeypatch.setattr(calibration, "_measure", measured)
    assert fastest(calibrated(None), calibrated(None), measure=False) == "speculative"
    assert fastest(calibrated(FREE), calibrated(None), measure=False) == "speculative"
    with pytest.raises(AssertionError, match="was measured"):
        fastest(calibrated(FREE), calibrated(None))


def test_what_was_measured_comes_before_estimates(tmp_path: Path) -> None:
    target, draft = calibrated(DEAR), calibrated(Curve((1, 65), (0.01, 0.01)))
    for name, each in (("target", target), ("draft", draft)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        each.folder, each.dtype = folder, "float32"
    key = target.key
    assert isinstance(key, Key)
    speed_ups = {str((tmp_path / "draft").resolve()): {"rsd-s": 9.0, "speculative": 0.5}}
    store(key, DEAR, "a test", speed_ups=speed_ups)
    assert target.speed_ups(draft) == {"rsd-s": 9.0, "speculative": 0.5}
    assert fastest(target, draft) == "rsd-s"
    assert target.speed_ups(calibrated(FREE)) == {}
    other = replace(key, model=str(tmp_path / "other"))
    assert calibration.known_speed_ups(other) == {}
