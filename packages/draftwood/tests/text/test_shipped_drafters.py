"""`auto` takes the head that comes with draftwood for a model, unless it is told not to."""

import os
from pathlib import Path

import pytest

import draftwood
from draftwood.costs.calibration import Calibration
from draftwood.drafters import MultiSource
from draftwood.heads import places, trained
from draftwood.heads.folder import save, shipped_for
from draftwood.heads.packed import shipped
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.storage import weights as stored
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood_torch.lean.model import LeanModel
from letters import letters
from tiny_heads import tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NativeModel:
    """A model for which a head comes with draftwood."""
    model = NativeModel(tiny_llama(0, layers=6))
    save(tmp_path / "tiny-eagle", tiny_eagle(model), "A card.")
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    return model


def sources(lm: LanguageModel) -> set[str]:
    drafter = lm.method.drafter
    assert isinstance(drafter, MultiSource)
    return {source.name for source in drafter.sources}


def test_a_model_is_known_by_its_weights(target: NativeModel) -> None:
    found = shipped_for(target, "eagle")
    assert found is not None
    assert len(found.draft_tokens) == target.vocab_size // 2
    assert shipped_for(target, "ctc") is None
    assert shipped_for(NativeModel(tiny_llama(1, layers=6)), "eagle") is None
    assert shipped_for(NativeModel(tiny_llama(0, layers=5)), "eagle") is None


def test_the_pass_that_knows_a_model_is_made_once_for_its_weights(
    target: NativeModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr(stored, "home", lambda: home)
    probe, made = trained._probe, list[object]()
    monkeypatch.setattr(trained, "_probe", lambda model: (made.append(model), probe(model))[1])
    weights = tmp_path / "weights" / "model.safetensors"
    weights.parent.mkdir()

    def has_head(model: NativeModel, holds: bytes) -> bool:
        if not weights.exists() or weights.read_bytes() != holds:
            weights.write_bytes(holds)
            os.utime(weights, (0, 0))
        return shipped(Calibration(model, weights.parent, "int8"), "eagle") is not None

    def again(seed: int = 0) -> NativeModel:
        return NativeModel(tiny_llama(seed, layers=6))

    assert has_head(again(), b"first")
    assert has_head(again(), b"first")
    assert len(made) == 1
    assert has_head(again(1), b"first")  # what was kept decides, so that no pass is made
    assert not has_head(again(1), b"others")
    assert len(made) == 2
    assert not has_head(again(1), b"others")
    kept = max((home / "probes").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for damaged in (b"", b"\xff", b"1", b'{"probe": 1}', b'["a"]'):
        kept.write_bytes(damaged)
        assert not has_head(again(1), b"others")
    assert len(made) == 7
    home.rename(tmp_path / "elsewhere")
    home.write_text("no folder")
    assert has_head(again(), b"first")
    assert shipped(Calibration(again()), "eagle") is not None  # from memory
    assert len(made) == 9


def test_auto_takes_it_where_the_model_runs_natively(target: NativeModel) -> None:
    lm = draftwood.load(tiny_llama(0, layers=6), letters(), method="plain")
    if isinstance(lm.model, NativeModel):
        assert "trained-head" in sources(lm.with_method("auto", measure=False))
    lean = LanguageModel(LeanModel(tiny_llama(0, layers=6)), letters(), lm.method, "lean")
    assert "trained-head" not in sources(lean.with_method("auto", measure=False))
    native = LanguageModel(target, letters(), lm.method, "native")
    assert "trained-head" in sources(native.with_method("auto", measure=False))
    without = native.with_method("auto", draft_model="none", measure=False)
    assert "trained-head" not in sources(without)
    assert "trained-head" not in sources(without.with_method("auto", measure=False))


def test_none_is_no_drafter_for_those_that_need_one(target: NativeModel) -> None:
    with pytest.raises(ValueError, match="name its folder with --draft-model"):
        draftwood.load(tiny_llama(0, layers=6), letters(), method="eagle", draft_model="none")
