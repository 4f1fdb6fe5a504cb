"""`draftwood generate --answers N --method superposed` and `distinct`, as users type them."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from command import refused, run
from draftwood.testing import tiny_llama
from letters import LETTERS, letters

TOGETHER = ("--answers", "3", "--max-new-tokens", "10")
SUPERPOSED = (*TOGETHER, "--method", "superposed", "--inexact")


@pytest.fixture
def store(target: str, tmp_path: Path) -> str:
    """A datastore of this model's tokens."""
    text = tmp_path / "text.txt"
    text.write_text("hello hello world, hello world again; the world says hello. " * 30)
    made = run("datastore", "build", str(text), "--model", target, "--output", f"{text}.store")
    assert made.exit_code == 0, made.output
    return f"{text}.store"


def test_superposed_writes_different_answers_and_counts_shared_passes_once(
    target: str, store: str
) -> None:
    asked = ("generate", "hello hello", "--model", target, "--datastore", store, *SUPERPOSED)
    told = json.loads(run(*asked, "--json").stdout)
    tokens = [tuple(each["token_ids"]) for each in told["answers"]]
    assert len(set(tokens)) == 3
    assert [len(each) for each in tokens] == [10, 10, 10]
    assert [each["stats"]["target_runs"] for each in told["answers"]] == [9, 0, 0]
    assert {each["method"] for each in told["answers"]} == {"superposed"}
    shown = run(*asked, "--stats")
    assert shown.exit_code == 0, shown.output
    assert "30 tokens" in shown.stderr
    assert "forward passes 9" in shown.stderr
    assert (
        json.loads(run(*asked, "--json").stdout)["answers"][1]["text"]
        == (told["answers"][1]["text"])
    )


def test_distinct_answers_end_where_the_context_is_to(target: str) -> None:
    asked = ("generate", "ab", "--raw", "--model", target, "--method", "distinct", "--answers", "2")
    made = run(*asked, "--context", "6", "--max-new-tokens", "9", "--json")
    assert made.exit_code == 0, made.output
    told = json.loads(made.stdout)
    assert [len(each["token_ids"]) for each in told["answers"]] == [4, 4]


def test_distinct_writes_different_answers_and_one_alone_is_a_draw(target: str) -> None:
    asked = ("generate", "hello", "--model", target, "--temperature", "1", "--seed", "3")
    told = json.loads(run(*asked, *TOGETHER, "--method", "distinct", "--json").stdout)
    assert len({tuple(each["token_ids"]) for each in told["answers"]}) == 3
    assert [each["stats"]["target_runs"] for each in told["answers"]] == [9, 0, 0]
    alone = json.loads(run(*asked, "--method", "distinct", "--json").stdout)
    assert "answers" not in alone
    assert alone["method"] == "distinct"


@pytest.mark.filterwarnings("always:there is 1 text")
def test_fewer_answers_than_were_asked_for_are_told(target: str) -> None:
    asked = ("hello", "--model", target, *TOGETHER, "--method", "distinct", "--temperature", "1")
    for command in ("generate", "solve"):
        made = run(command, *asked, "--top-k", "1")
        assert made.exit_code == 0, made.output
        note = "there is 1 text under these options, 3 were asked for"
        assert [line for line in made.stderr.splitlines() if line.endswith(note)]
        assert "asked for" not in run(command, *asked).stderr


def test_the_prompt_s_time_is_its_own(target: str, store: str) -> None:
    asked = ("generate", "hello hello", "--model", target, "--json")
    for more in ((*TOGETHER, "--method", "distinct"), (*SUPERPOSED, "--datastore", store)):
        told = [
            each["stats"]["seconds"] for each in json.loads(run(*asked, *more).stdout)["answers"]
        ]
        assert told[0]["prefill"] > 0
        assert told[0]["target"] > 0
        assert {value for each in told[1:] for value in each.values()} == {0.0}


def test_what_does_not_go_together_is_refused_before_anything_is_loaded(store: str) -> None:
    nowhere = ("generate", "hello", "--model", "/nowhere")
    assert "--inexact allows that" in refused(*nowhere, *SUPERPOSED[:-1], "--datastore", store)
    wanted = "reads a datastore; name one with --datastore, which 'draftwood datastore build'"
    assert wanted in refused(*nowhere, *SUPERPOSED)
    asked = (*nowhere, *SUPERPOSED, "--datastore", store)
    for more in (("--tree", "3,2"), ("--show-tree",), ("--draft-model", "smollm2-135m-ctc")):
        assert f"drafts nothing; leave {more[0]}" in refused(*asked, *more)
    distinct = (*nowhere, *TOGETHER, "--method", "distinct", "--datastore", store)
    assert "drafts nothing; leave --datastore out" in refused(*distinct)


def test_options_that_a_method_does_not_take_are_refused(target: str, store: str) -> None:
    asked = ("generate", "hello", "--model", target)
    for more, name in (
        (("--temperature", "1"), "temperature"),
        (("--stop", "a"), "stop"),
        (("--rules", "momentum=0.2"), "rules"),
    ):
        told = refused(*asked, *SUPERPOSED, "--datastore", store, *more)
        assert f"method 'superposed' does not take {name}; leave it out" in told
    told = refused(*asked, *TOGETHER, "--method", "distinct", "--stop", "a")
    assert "method 'distinct' does not take stop" in told


def test_tokens_of_another_tokenizer_are_refused(store: str, tmp_path: Path) -> None:
    other = letters()
    other.save_pretrained(tmp_path / "letters")
    tiny_llama(vocab=len(LETTERS)).save_pretrained(tmp_path / "letters")
    told = refused(
        *("generate", "hello", "--model", str(tmp_path / "letters"), *SUPERPOSED),
        *("--datastore", store),
    )
    assert "tokens of another tokenizer" in told


def test_both_are_listed_with_promises_and_sources() -> None:
    told = json.loads(run("methods", "--package", "choices", "--json").stdout)
    found = {each["name"]: each for each in told if "--answers 3" in each["option"]}
    assert found["superposed"]["promise"] == "trades quality"
    assert found["superposed"]["option"].endswith("--inexact")
    assert found["superposed"]["source"].endswith("arXiv:2405.18400")
    assert found["distinct"]["promise"] == "another aim"


def test_nothing_of_it_is_there_where_it_is_not_installed(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("answers", "listings"):
        monkeypatch.setattr(
            import_module(f"draftwood.methods.{module}"), "entry_points", lambda _: ()
        )
    told = refused("generate", "hello", "--model", target, *SUPERPOSED)
    assert "there is no method 'superposed'" in told
