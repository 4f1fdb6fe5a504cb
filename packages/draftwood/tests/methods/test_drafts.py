"""Draft models and heads are sorted by kind, and the default method follows from the kind."""

import json
from pathlib import Path
from typing import Any

import pytest

import draftwood
from draftwood.methods.drafts import Drafts
from draftwood.moved import MovedWarning


def head(folder: Path, kind: str, **settings: object) -> str:
    """A folder that says it is a head; nothing more of it is read."""
    folder.mkdir()
    says = {"format": "draftwood-drafter", "version": 1, "kind": kind, "head": settings}
    (folder / "config.json").write_text(json.dumps(says))
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "settings", "method"),
    [
        ("ctc", {}, "ctc"),
        ("lm", {}, "lm"),
        ("eagle", {}, "auto"),
        ("medusa", {"sees_drafted": False}, "medusa"),
        ("medusa", {"sees_drafted": True}, "hydra"),
    ],
)
def test_the_method_follows_from_the_kind_of_a_head(
    kind: str, settings: dict[str, Any], method: str, tmp_path: Path
) -> None:
    folder = head(tmp_path / "head", kind, **settings)
    for given in (folder, Path(folder), [folder]):
        found = Drafts.of(given)
        assert (found.model, found.head, found.method) == (None, folder, method)
        assert found.given == {"head"}


def test_a_head_that_comes_with_a_package_is_known_by_its_name() -> None:
    assert Drafts.of("smollm2-135m-ctc").method == "ctc"
    assert Drafts.of("smollm2-135m-eagle").method == "auto"


def test_what_is_no_head_is_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for given in ("stories-15m", "some/where", "model.gguf", str(tmp_path), object()):
        found = Drafts.of(given)
        assert (found.model, found.head, found.method) == (given, None, "speculative")
        assert found.given == {"draft-model"}
    (tmp_path / "config.json").write_text('{"format": ')
    assert Drafts.of(tmp_path).model == str(tmp_path)


def test_a_torn_description_is_a_heads_all_the_same(tmp_path: Path) -> None:
    folder = head(tmp_path / "head", "ctc", frames=6)
    assert Drafts.of(folder).levels == 6
    config = tmp_path / "head" / "config.json"
    config.write_text(config.read_text()[:60])
    assert Drafts.of(folder).head == folder
    assert Drafts.of(folder).levels is None
    (tmp_path / "head" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"config.json is not whole .*; copy it again"):
        draftwood.load(str(tmp_path), method="rsd-s", draft_model=folder)


def test_nothing_and_none() -> None:
    assert Drafts.of() == Drafts.of(()) == Drafts()
    assert Drafts.of().takes_shipped
    assert Drafts.of().method == Drafts.of("none").method == "auto"
    assert not Drafts.of("none").takes_shipped
    assert Drafts.of("none").given == frozenset()
    both = Drafts.of(["none", "stories-15m"])
    assert (both.model, both.takes_shipped) == ("stories-15m", False)


def test_at_most_one_of_each_kind(tmp_path: Path) -> None:
    one, other = (head(tmp_path / name, "ctc") for name in ("one", "other"))
    both = Drafts.of([one, "stories-15m"])
    assert (both.model, both.head) == ("stories-15m", one)
    eagle = head(tmp_path / "eagle", "eagle")
    cure = "give at most one language model and one trained head$"
    for given, kind in (([one, other], "heads"), ([one, eagle], "heads"), (["a", "b"], "models")):
        with pytest.raises(ValueError, match=f"two .*{kind} are given to draft with.*; {cure}"):
            Drafts.of(given)
    for given in (["none", one], [one, "none", other]):
        with pytest.raises(ValueError, match=r"'none' leaves trained heads out.* or one head$"):
            Drafts.of(given)


def test_the_old_name_of_the_option_takes_heads_alone(tmp_path: Path) -> None:
    folder = head(tmp_path / "head", "ctc")
    with pytest.warns(MovedWarning, match="drafter is draft_model now"):
        assert Drafts.of(None, folder) == Drafts.of(folder)
    with pytest.warns(MovedWarning, match="drafter is draft_model now"):
        assert not Drafts.of(None, "none").takes_shipped
    with pytest.raises(TypeError, match=r"^drafter must be .*, got 5$"):
        Drafts.of(None, 5)
