"""`draftwood bench solve`: what is right, records that go on, paired differences."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import refused, run
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Instruction, Prompt
from draftwood_bench.run import describe, instructions
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.search.methods import Solution
from draftwood_choices.search.proposals import Proposal
from draftwood_choices.solving.run import (
    HALF,
    PLAIN,
    PROTOCOL,
    Half,
    Reference,
    SolvedRecord,
    Solving,
    is_right,
    judge_for,
)
from draftwood_choices.solving.table import compared

SUM = Prompt("sum", "math", ("What is 2 + 2?",), answer="4")


def test_an_answer_is_right_by_its_first_word() -> None:
    cloze = Prompt("cloze", "last word", ("Anna gave it to her",), next_word="mother-in-law")
    assert is_right(cloze, " Mother-in-law, who") == 1.0
    assert is_right(cloze, " mother. Her mother-in-law") == 0.0
    assert is_right(cloze, "") == 0.0


class Ending:
    """An instruction's checker as the LM Evaluation Harness has it: a last mark."""

    def __init__(self, name: str) -> None:
        assert name == "ends"

    def build_description(self, *, mark: str) -> None:
        self.mark = mark

    def get_instruction_args(self) -> dict[str, str]:
        return {"mark": self.mark}

    def check_following(self, text: str) -> bool:
        return text.endswith(self.mark)


def record(point: str, prompt: str, solved: float) -> SolvedRecord:
    return SolvedRecord(point, prompt, solved, 0.5, 1.0, 20, 10, 2, 0.5, "text")


def test_an_answer_is_right_by_its_last_number() -> None:
    assert is_right(SUM, "2 and 2 make 4.") == 1.0
    assert is_right(SUM, "4 is not 5.") == 0.0
    assert Reference(SUM)("It is 4").passed
    assert not Reference(SUM)("It is 5").passed
    with pytest.raises(ValueError, match="has no right answer"):
        is_right(Prompt("chat", "chat", ("Hello",)), "Hello")


def test_a_judge_sees_the_first_half_of_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_kinds", lambda: {"ends": Ending})
    told = tuple(Instruction("ends", {"mark": mark}) for mark in ".?!")
    asked = Prompt("p", "c", ("Shout.",), instructions=told)
    assert [Half(asked)(text).value for text in ("so.", "so!", "")] == [1.0, 0.0, 0.0]
    assert is_right(asked, "so.") == 0.0  # the other half is not followed
    assert is_right(replace(asked, instructions=told[2:]), "so!") == 1.0
    assert Half(replace(asked, instructions=told[2:]))("so!").value == 0.0  # sees none of one
    with pytest.raises(ValueError, match="'sum' has no instructions"):
        judge_for(SUM, HALF)


def test_what_is_no_whole_answer_counts_as_none(tmp_path: Path) -> None:
    task, whole = Proposal("", is_whole=False), Proposal("2 + 2 = 4")
    steps = [Proposal(text, is_whole=False) for text in ("2 + 2 is", "4")]

    def solved(*proposals: Proposal) -> SolvedRecord:
        way: Any = SimpleNamespace(rounds=1, search=lambda *_: Solution(whole, [*proposals]))
        lm: Any = SimpleNamespace(tokenizer=SimpleNamespace(chat_template=None))
        of = (lm, {"tree": way}, 2, None, None, [SUM], {"seed": 0}, tmp_path)
        return Solving(*of)._solve("tree", SUM, 0)

    wrong = solved(task, *steps, Proposal("It is 5"))
    assert (wrong.mean_solved, wrong.any_solved) == (0.0, 0.0)
    found = solved(task, *steps, whole, Proposal("It is 5"))
    assert (found.mean_solved, found.any_solved) == (0.5, 1.0)
    assert solved(task, *steps).mean_solved == 1.0  # of the chosen one


def test_differences_are_paired_by_prompt() -> None:
    hard = {str(number): float(number % 2) for number in range(40)}
    records = [record(PLAIN, prompt, value) for prompt, value in hard.items()]
    records += [record("same", prompt, value) for prompt, value in hard.items()]
    records += [record("other", prompt, 1.0 - value) for prompt, value in hard.items()]
    found = compared(records)
    same, other = found["same"][1], found["other"][1]
    assert (same.low, same.high) == (0.0, 0.0)  # though prompts differ
    assert other.low < 0.0 < other.high  # the control: as often right, elsewhere
    assert found["other"][0].value == 0.5


def test_the_protocol_runs_and_goes_on(target: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    asked = [{"prompt": f"What is {each} + 1?", "answer": str(each + 1)} for each in range(2)]
    prompts.write_text("".join(json.dumps(each) + "\n" for each in asked))
    folder = tmp_path / "run"
    command = ("bench", "solve", "--model", target, "--prompts", str(prompts), "--answers", "3")
    command += ("--max-new-tokens", "8", "--checker", "reference", "--output", str(folder))
    done = run(*command)
    assert done.exit_code == 0, done.output
    found = RecordFolder(folder, PROTOCOL, SolvedRecord)
    records = found.read()
    assert [each.point for each in records] == [PLAIN, "best-of", "majority"] * 2
    plain, best, votes = records[:3]
    assert (plain.judge_calls, votes.judge_calls) == (0, 1)
    assert 1 <= best.judge_calls <= 3  # each text once
    assert plain.tokens <= 8 < best.tokens <= 24
    assert best.passes < best.tokens  # answers share passes
    assert all(each.any_solved >= max(each.solved, each.mean_solved) for each in records)
    assert (len(plain.nodes), len(best.nodes), len(votes.nodes)) == (1, 3, 3)
    assert [each["text"] for each in best.nodes if each["is_chosen"]] == [best.text]
    assert "best-of" in done.stdout
    lines = found.file.read_text().splitlines(keepends=True)
    found.file.write_text("".join(lines[:2]) + lines[2][:9])  # stopped while it wrote
    assert run(*command).exit_code == 0
    again = [(each.point, each.prompt, each.text) for each in found.read()]
    assert again == [(each.point, each.prompt, each.text) for each in records]
    assert "other settings" in refused(*command, "--seed", "1")


def test_passages_are_continued_as_they_are(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, read = tmp_path / "cloze.jsonl", list[tuple[object, bool]]()
    prompts.write_text(json.dumps({"prompt": "one two three two", "next_word": "three"}) + "\n")
    encode = LanguageModel.encode

    def told(lm: LanguageModel, prompt: Any, raw: bool = False, *more: Any) -> list[int]:
        read.append((prompt, raw))
        return encode(lm, prompt, raw, *more)

    monkeypatch.setattr(LanguageModel, "encode", told)
    command = ("bench", "solve", "--model", target, "--prompts", str(prompts))
    command += ("--max-new-tokens", "4", "--methods", "majority", "--output", str(tmp_path / "run"))
    assert run(*command).exit_code == 0
    assert {*read} == {("one two three two", True)}


def test_a_datastore_that_no_method_reads_is_refused(tmp_path: Path) -> None:
    (store := tmp_path / "texts.store").write_text("")
    command = ("bench", "solve", "--model", "/nowhere", "--output", str(tmp_path / "run"))
    command += ("--datastore", str(store), "--methods")
    assert "distinct drafts nothing; leave --datastore out" in refused(*command, "distinct")
    assert "/nowhere" in refused(*command, "distinct,best-of")


def test_a_folder_names_the_commits_that_measured_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RecordFolder(tmp_path, PROTOCOL, SolvedRecord)
    for each in ("aaaa", "aaaa", "bbbb-dirty", None):
        monkeypatch.setattr(describe, "commit", lambda each=each: each)
        folder.begin({"answers": (4, 2)})
    assert folder.settings() == {"answers": [4, 2]}
    assert folder.commits() == ["aaaa", "bbbb-dirty", None]
    old = RecordFolder(tmp_path / "old", PROTOCOL, SolvedRecord)
    old.folder.mkdir()
    (old.folder / f"{PROTOCOL}.json").write_text('{"answers": 4}')
    old.begin({"answers": 4})  # goes on, and stays of an unknown commit
    assert old.commits() == [None]


def test_bad_input_is_refused(target: str, tmp_path: Path) -> None:
    command = ("bench", "solve", "--model", target, "--output", str(tmp_path / "run"))
    assert "there is no way to search 'vote'" in refused(*command, "--methods", "vote")
    assert "give --checker" in refused(*command, "--methods", "iad")
    told = refused(*command, "--methods", "lite-search,best-of", "--rounds", "2")
    assert "best-of has no rounds; leave --rounds out" in told
    for option in ("--answers", "--temperature"):
        told = refused(*command, "--methods", "answer-mask", option, "1")
        assert f"answer-mask writes one greedy answer; leave {option} out" in told
        mixed = refused(
            *("bench", "solve", "--model", "/nowhere", "--output", str(tmp_path / "run")),
            *("--methods", "answer-mask,best-of", option, "1"),
        )
        assert "/nowhere" in mixed  # others of the methods draw
    assert "has no right answer" in refused(*command, "--prompts", "built-in", "--limit", "1")
    assert not (tmp_path / "run").exists()
