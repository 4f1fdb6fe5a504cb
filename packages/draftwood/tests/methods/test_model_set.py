"""A target and what drafts for it are loaded once; methods take of it what they need."""

from pathlib import Path

import pytest

import draftwood
from draftwood import methods
from draftwood.drafters import DraftModel
from draftwood.heads import folder
from draftwood.loading import models as loading
from draftwood.loading.models import load_model
from draftwood.model_names import ModelNames
from draftwood.model_set import ModelSet
from draftwood.models.native import NativeModel
from draftwood.text.language_model import LanguageModel
from tiny_heads import tiny_ctc, tiny_eagle, tiny_lm

KINDS = {"ctc": tiny_ctc, "eagle": tiny_eagle, "lm": tiny_lm}


@pytest.fixture(scope="module")
def heads(target: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Heads that learnt nothing, by kind."""
    model = load_model(target, "float32").model
    place = tmp_path_factory.mktemp("heads")
    return {
        kind: str(folder.save(place / kind, make(model), "# Learnt nothing"))
        for kind, make in KINDS.items()
    }


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that are loaded."""
    seen, load = list[str](), loading.load_model

    def watched(name: str, *given: object, **more: object) -> object:
        seen.append(name)
        return load(name, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("draftwood.loading.draft_models.load_model", watched)
    return seen


def test_each_part_is_loaded_once_for_all_methods(
    target: str, draft: str, heads: dict[str, str], loaded: list[str]
) -> None:
    models = ModelSet.load(target, draft_model=[draft, heads["ctc"]], dtype="float32")
    assert loaded == [target, draft]
    built = {name: models.method(name) for name in ("rsd-s", "ctc", "plain", "auto")}
    assert loaded == [target, draft]
    assert {name: each.name for name, each in built.items()} == {name: name for name in built}
    assert isinstance(built["rsd-s"].drafter, DraftModel)
    plain = LanguageModel.of(models, "plain").generate("hi", max_new_tokens=12)
    for method in ("rsd-s", "ctc"):
        lm = LanguageModel.of(models, method)
        assert lm.generate("hi", max_new_tokens=12).token_ids == plain.token_ids
        # what is there stays there for other methods
        assert lm.with_method("speculative").models.drafts.model is models.drafts.model
    assert loaded == [target, draft]


@pytest.mark.parametrize(("kind", "method"), [("ctc", "ctc"), ("lm", "lm")])
def test_the_default_method_is_that_of_the_head(
    kind: str, method: str, target: str, heads: dict[str, str]
) -> None:
    lm = draftwood.load(target, draft_model=heads[kind], dtype="float32")
    assert lm.method.name == method
    assert lm.with_method().method.name == method
    assert lm.with_method("auto").method.name == "auto"


def test_an_eagle_head_drafts_in_auto_where_it_can(target: str, heads: dict[str, str]) -> None:
    lm = draftwood.load(target, draft_model=heads["eagle"], dtype="float32")
    native = isinstance(lm.model, NativeModel)
    assert lm.method.name == ("auto" if native else "eagle")


def test_the_default_method_of_a_draft_model_uses_it(target: str, draft: str) -> None:
    lm = draftwood.load(target, draft_model=draft, dtype="float32")
    assert "draft-model" in methods.spec(lm.method.name).needs
    assert lm.generate("hi", max_new_tokens=8).stats.drafted > 0


def test_an_old_name_still_takes_heads(target: str, heads: dict[str, str]) -> None:
    with pytest.warns(FutureWarning, match="drafter is draft_model now"):
        lm = draftwood.load(target, drafter=heads["ctc"], dtype="float32")
    assert lm.method.name == "ctc"
    with pytest.warns(FutureWarning, match="drafter is draft_model now"):
        assert lm.with_method("lm", drafter=heads["lm"]).method.name == "lm"


def test_resources_that_are_given_and_not_used_are_refused(
    target: str, draft: str, heads: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="'ctc' uses no draft model"):
        draftwood.load(target, draft_model=[draft, heads["ctc"]])
    lm = draftwood.load(target, draft_model=heads["ctc"], dtype="float32")
    with pytest.raises(ValueError, match="'lookup' uses no trained head"):
        lm.with_method("lookup", heads["ctc"])
    with pytest.raises(ValueError, match=r"auto drafts with EAGLE heads.* is for method 'ctc'"):
        draftwood.load(target, method="auto", draft_model=heads["ctc"])
    with pytest.raises(ValueError, match="'cascade' drafts with a second, smaller model"):
        lm.with_method("cascade")
    assert lm.with_method("rsd-s").method.drafter.name == "ctc"  # a head stands in
    assert lm.with_method("lookup").method.name == "lookup"  # what it had need not be used


def test_the_method_that_follows_is_refused_as_a_named_one(
    target: str, draft: str, heads: dict[str, str]
) -> None:
    lm = draftwood.load(target, dtype="float32")
    for refusal, given in {
        "'auto' has drafts that cost next to nothing": {"overlap": True},
        "'ctc' uses no draft model": {"draft_model": [draft, heads["ctc"]]},
        "'ctc' reads the target's hidden states": {"draft_model": heads["ctc"], "overlap": True},
    }.items():
        with pytest.raises(ValueError, match=refusal):
            lm.with_method(None, **given)
    assert lm.with_method(None, heads["ctc"]).method.name == "ctc"


def test_names_hold_in_other_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    found = ModelNames("here", ["here", "none"], "nowhere").from_anywhere()  # type: ignore[arg-type]
    here = str((tmp_path / "here").resolve())
    drafts = {"draft_model": (here, "none"), "datastore": "nowhere"}
    assert found == {"model": here, **drafts, "adapter": None}
    assert ModelNames(draft_model="a").draft_model == ("a",)  # type: ignore[arg-type]
    assert ModelNames(draft_model=None).draft_model == ()  # type: ignore[arg-type]
