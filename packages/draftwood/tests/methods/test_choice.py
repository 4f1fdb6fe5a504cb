"""The default method of a draft model: the fastest by what passes cost and tune expects."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftwood.costs import calibration
from draftwood.costs.calibration import Calibration, Key, store
from draftwood.costs.curve import Curve
from draftwood.methods.choice import estimates, fastest, speed_up
from draftwood.methods.parts import known_parts
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


def stored(folder: Path, speed_ups: Mapping[str, float]) -> tuple[Calibration, Calibration]:
    """A target that has these speed-ups with a draft model, and that draft model."""
    target, draft = calibrated(DEAR), calibrated(Curve((1, 65), (0.01, 0.01)))
    for name, each in (("target", target), ("draft", draft)):
        each.folder, each.dtype = folder / name, "float32"
        each.folder.mkdir()
        (each.folder / "model.safetensors").write_bytes(b"weights")
    key = target.key
    assert isinstance(key, Key)
    draft_folder = str((folder / "draft").resolve())
    store(key, DEAR, "a test", speed_ups={draft_folder: speed_ups})
    return target, draft


def test_what_tune_expects_comes_before_usual_acceptance(tmp_path: Path) -> None:
    target, draft = stored(tmp_path, {"rsd-s": 9.0, "speculative": 0.5})
    assert target.speed_ups(draft) == {"rsd-s": 9.0, "speculative": 0.5}
    assert fastest(target, draft) == "rsd-s"
    assert target.speed_ups(calibrated(FREE)) == {}
    assert isinstance(target.key, Key)
    other = replace(target.key, model=str(tmp_path / "other"))
    assert calibration.known_speed_ups(other) == {}


def test_stored_methods_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    """One of a package that is gone, a lossy one, and one that cannot draft meanwhile."""
    recipes = known_parts().recipes
    lossy = next(name for name, each in recipes.items() if not each.lossless)
    found = {"gone": 9.0, lossy: 8.0, "cascade": 7.0, "rsd-s": 6.0}
    target, draft = stored(tmp_path, found)
    assert "gone" not in recipes
    assert recipes["cascade"].lossless
    assert not recipes["cascade"].drafts_ahead
    assert fastest(target, draft) == "cascade"
    assert fastest(target, draft, ahead=True) == "rsd-s"
