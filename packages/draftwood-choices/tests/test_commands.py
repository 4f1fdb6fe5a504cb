"""Commands with this package, and nothing of it where it is not installed."""

import json
from importlib import import_module

import pytest

from command import refused, run
from draftwood import rules
from draftwood.testing import promises
from draftwood.testing import rules as of_rules
from draftwood_choices import checks
from draftwood_choices.collaboration import proof


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not installed."""

    def others(group: str) -> list[object]:
        return [each for each in found(group) if not each.value.startswith("draftwood_choices")]

    found = rules.entry_points
    for module in (rules, import_module("draftwood.methods.listings"), promises):
        monkeypatch.setattr(module, "entry_points", others)
    rules.text_rule.cache_clear()


def test_a_text_by_a_rule_is_the_same_with_and_without_drafts(target: str) -> None:
    asked = ("generate", "hello hello hello", "--model", target, "--max-new-tokens", "40", "--json")
    plain = json.loads(run(*asked, "--method", "plain").stdout)
    texts = []
    for more in (("plain",), ("auto",), ("lookup",)):
        made = run(*asked, "--rules", "momentum=0.2", "--method", *more)
        assert made.exit_code == 0, made.output
        texts.append(json.loads(made.stdout)["text"])
    assert len(set(texts)) == 1
    assert texts[0] != plain["text"]
    assert json.loads(run(*asked, "--rules", "momentum").stdout)["text"] == texts[0]


def test_methods_lists_the_package_with_promises_and_sources() -> None:
    listed = run("methods", "--package", "choices")
    assert listed.stdout.splitlines()[0].split()[:2] == ["name", "promise"]
    assert "arXiv:2212.02175" in listed.stdout
    assert listed.stdout.splitlines()[2].split("  ")[0] == "momentum"
    assert "another aim" in listed.stdout
    described, *_ = json.loads(run("methods", "--package", "draftwood-choices", "--json").stdout)
    assert described["option"] == "--rules momentum=0.2"
    assert described["source"].endswith("arXiv:2212.02175")
    assert "momentum=0.2" in run("methods").stdout
    own = run("methods", "--package", "methods")
    assert "jacobi" in own.stdout
    assert "momentum" not in own.stdout


@pytest.mark.usefixtures("absent")
def test_nothing_of_it_is_there_where_it_is_not_installed() -> None:
    assert "momentum" not in run("methods").stdout
    _, _, others = refused("methods", "--package", "choices").partition("these do: ")
    assert "draftwood-methods" in others
    assert "draftwood-choices" not in others
    assert "no rule 'momentum'" in refused("generate", "Hi", "--rules", "momentum")
    assert not checks.CHECKS.keys() & promises.checks_of_packages().keys()


def test_check_runs_the_package_s_checks(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.methods.lossless_names", lambda: ["lookup"])
    monkeypatch.setattr(promises, "check_controls", lambda: iter(()))
    monkeypatch.setattr(promises, "TEXTS", 3)
    own = [each for each in rules.entry_points("draftwood.checks") if each.name == "choices"]
    monkeypatch.setattr(promises, "entry_points", lambda group: own)
    done = run("check", "--model", target, "--max-new-tokens", "8", "--json")
    assert done.exit_code == 0, done.output
    found = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    assert set(checks.CHECKS) <= set(found)
    assert found["momentum in the root's context"]["check"] == "control"
    chosen = run("check", "--model", target, "--methods", "lookup", "--json")
    assert not set(checks.CHECKS) & {e["name"] for e in json.loads(chosen.stdout)["findings"]}


def test_a_control_that_is_right_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_rules, "AtTheRoot", of_rules.Rejection)
    assert not checks.CHECKS["momentum in the root's context"]().passed


def test_copies_that_read_nothing_write_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proof.copies_write() == []
    assert proof.copies_write(proof.Deaf) == list(proof.ALL_RULES)
    monkeypatch.setattr(proof.copies_write, "__defaults__", (proof.Deaf,))
    assert not checks.CHECKS[proof.COPIES]().passed


def test_a_writer_that_catches_up_is_not_called_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "Deaf", proof.LocalWriter)
    assert not checks.CHECKS[proof.CONTROL]().passed
