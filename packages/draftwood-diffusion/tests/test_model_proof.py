"""`draftwood check` on a model that fills masks: states looked ahead, and a control."""

import json
from importlib import import_module

import pytest

import draftwood
from command import refused, run
from draftwood import methods
from draftwood.testing import promises
from draftwood_diffusion import model_proof
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.model_proof import CAUGHT, SAME, STALE, cases, compared
from masked_copies import masked_copy

target = import_module("command_models").target  # a fixture of tests that run commands


@pytest.fixture(scope="module")
def filling(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return masked_copy(target, tmp_path_factory.mktemp("proof"))


@pytest.fixture(autouse=True)
def hardly_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """No laws but one, and no checks of other packages."""
    monkeypatch.setattr(promises, "TEXTS", 3)
    monkeypatch.setattr(promises, "check_controls", lambda: iter(()))
    monkeypatch.setattr(promises, "checks_of_packages", lambda: model_proof.CHECKS)
    monkeypatch.setattr(methods, "lossless_names", lambda: ["lookup"])


def test_check_proves_freedave_on_the_model_itself(filling: str) -> None:
    found = run("check", "--model", filling, "--texts", "3", "--max-new-tokens", "12", "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    told = {(each["check"], each["name"]): each for each in report["findings"]}
    # blocks of 1 to 4 tokens, greedily and drawn, three prompts, d = 2, 4 and 8, and branches
    assert told["identity", SAME]["detail"].startswith("0 of 96 texts differ, ")
    assert told["control", CAUGHT]["detail"].startswith("caught in ")
    assert told["identity", "lookup"]["passed"] is None
    assert "does not write token by token" in told["identity", "lookup"]["detail"]


def test_a_stale_pass_that_nobody_catches_and_a_text_that_differs_fail(
    filling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("check", "--model", filling, "--texts", "1", "--max-new-tokens", "8")
    monkeypatch.setattr(model_proof, "STALE", FreeDave(4))
    found = run(*asked)
    assert found.exit_code == 1
    assert "not caught" in found.stdout
    monkeypatch.setattr(model_proof, "AHEAD", [STALE])
    monkeypatch.setattr(model_proof, "STALE", STALE)
    found = run(*asked)
    assert found.exit_code == 1
    assert "1 of 6 checks failed" in found.stdout


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_freedave_writes_what_one_by_one_does_on_the_shipped_model(dtype: str) -> None:
    lm = draftwood.load("stories-diffusion", dtype=dtype, method="plain")
    chosen = list(cases(lm, 1, 16))
    found = compared(iter(chosen[::3]), [FreeDave(4)])
    assert (found.texts, found.changed) == (11, 0)
    assert found.saved > 0
    assert compared(iter(chosen[-2:]), [STALE]).changed > 0


def test_what_does_not_go_together_is_refused(target: str, filling: str) -> None:
    told = refused("check", "--methods", "lookup", "--model", filling)
    assert "does not write token by token: it fills masks" in told
    assert "--texts is for checks on a model that fills masks" in refused(
        "check", "--texts", "2", "--model", target
    )
