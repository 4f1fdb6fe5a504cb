"""Draft with a trained head, from the command line and from ``generate`` of Transformers."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import draftwood
from command import refused, run
from draftwood.heads import folder
from draftwood.loading.models import load_model
from draftwood.native import library
from draftwood.testing import promises as checking
from draftwood_bench.records.files import read_run
from tiny_heads import tiny_ctc, tiny_eagle

FLOATS = ("--dtype", "float32", "--max-new-tokens", "12")


@pytest.fixture(scope="module")
def drafter(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("drafters") / "eagle"
    trained = tiny_eagle(load_model(target, "float32").model)
    return str(folder.save(place, trained, "# Learnt nothing"))


@pytest.fixture(scope="module")
def ctc(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("drafters") / "ctc"
    trained = tiny_ctc(load_model(target, "float32").model)
    return str(folder.save(place, trained, "# Learnt nothing"))


def test_commands_draft_with_a_folder(target: str, drafter: str) -> None:
    given = ("--model", target, "--draft-model", drafter, *FLOATS, "--json")
    compared = json.loads(run("compare", "hi", "--methods", "eagle,eagle-rsd", *given).stdout)
    assert compared["results"]["eagle"]["identical_to_plain"] is True
    assert compared["results"]["eagle-rsd"]["identical_to_plain"] is True
    made = json.loads(run("generate", "hi", "--method", "eagle", *given).stdout)
    assert made["method"] == "eagle"


def test_the_method_follows_from_the_head(target: str, ctc: str, drafter: str) -> None:
    given = ("--model", target, *FLOATS, "--json")
    plain = json.loads(run("generate", "hi", "--method", "plain", *given).stdout)
    made = json.loads(run("generate", "hi", "--draft-model", ctc, *given).stdout)
    assert made["method"] == "ctc"
    assert made["token_ids"] == plain["token_ids"]
    made = json.loads(run("generate", "hi", "--draft-model", drafter, *given).stdout)
    assert made["method"] == ("auto" if library.available() else "eagle")


def test_the_old_option_says_its_new_name(target: str, ctc: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        made = run("generate", "hi", "--drafter", ctc, "--model", target, *FLOATS, "--json")
    assert json.loads(made.stdout)["method"] == "ctc"
    assert "draftwood: warning: --drafter is --draft-model now" in made.stderr
    assert "--drafter" not in run("generate", "--help").stdout


def test_methods_are_compared_with_a_model_and_a_head(target: str, draft: str, ctc: str) -> None:
    given = ("--draft-model", draft, "--draft-model", ctc, "--model", target, *FLOATS, "--json")
    compared = json.loads(run("compare", "hi", "--methods", "rsd-s,ctc,auto", *given).stdout)
    assert all(each["identical_to_plain"] for each in compared["results"].values())
    said = refused("compare", "hi", "--methods", "rsd-s", "--draft-model", draft, *given)
    assert "two language models are given to draft with" in said
    answered = run("chat", *given[:-1], given="hi\n/method rsd-s\nho\n")
    assert answered.exit_code == 0
    assert "ctc does without --draft-model" in answered.stderr
    assert "method: rsd-s" in answered.stderr


def test_chat_says_that_a_head_is_left_aside(target: str, ctc: str, drafter: str) -> None:
    given = ("chat", "--method", "auto", "--model", target, *FLOATS, "--draft-model")
    aside = "auto does without --draft-model (a head for --method ctc)"
    assert aside in run(*given, ctc, given="hi\n").stderr
    if library.available():
        assert "does without" not in run(*given, drafter, given="hi\n").stderr


def test_check_says_what_is_lacking_or_uses_it(
    target: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = checking.CheckResult("law", "eagle", True)
    monkeypatch.setattr(checking, "check_law", lambda recipe: passed)  # takes a minute
    monkeypatch.setattr(checking, "check_controls", lambda: iter(()))
    shown = run("check", "--methods", "eagle,lookup", "--model", target, "--json")
    found = {(f["check"], f["name"]): f for f in json.loads(shown.stdout)["findings"]}
    assert found["identity", "eagle"]["detail"] == "needs --draft-model (a trained head)"
    shown = run(
        "check", "--methods", "eagle", "--model", target, "--draft-model", drafter, "--json"
    )
    found = {(f["check"], f["name"]): f for f in json.loads(shown.stdout)["findings"]}
    assert found["identity", "eagle"]["passed"] is True


def test_a_drafter_of_another_model_is_refused(draft: str, drafter: str) -> None:
    said = refused(
        "generate", "hi", "--method", "eagle", "--draft-model", drafter, "--model", draft
    )
    assert f"was trained for tiny, and {draft} has decoder layers 1, not 4" in said


def test_benchmarks_note_the_drafter(target: str, drafter: str, tmp_path: Path) -> None:
    asked = ("bench", "spec-bench", "--methods", "eagle", "--limit", "1", "--rounds", "1")
    asked = (*asked, "--model", target, *FLOATS, "--output", str(tmp_path / "run"))
    assert run(*asked, "--draft-model", drafter, "--json").exit_code == 0
    info = read_run(tmp_path / "run")
    assert info.drafter == drafter
    assert info.drafter_weights is not None
    trained = folder.load(Path(drafter))
    other = folder.save(tmp_path / "other", trained, "", dtype="float32")
    assert "with drafter" in refused(*asked, "--draft-model", str(other))


def test_generate_of_transformers_drafts_with_it(target: str, drafter: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    tokens = torch.tensor([[5, 9, 11, 4]])
    wanted = model.generate(tokens, max_new_tokens=12, do_sample=False)
    seen = []
    hook = draftwood.custom_generate("eagle", draft_model=drafter, report=seen.append)
    found = model.generate(tokens, max_new_tokens=12, do_sample=False, custom_generate=hook)
    assert found.tolist() == wanted.tolist()
    assert seen[0].drafted > 0
