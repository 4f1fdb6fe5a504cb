"""Search: checkers with limits, formulas of the papers, and walks through trees."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command import refused, run
from draftwood.stats import Stats
from draftwood.text.stream import Generation
from draftwood_choices.search import iad, plan_tree, proposals, thought_tree
from draftwood_choices.search.checkers import (
    Judgement,
    Pattern,
    Program,
    Schema,
    checker_of,
    pattern_of,
)
from draftwood_choices.search.lite_search import CHILDREN, StepTree, children
from draftwood_choices.search.methods import METHODS, SearchOptions
from draftwood_choices.search.plan_tree import plan_of
from draftwood_choices.search.proposals import Proposer, final_answer
from draftwood_choices.search.thought_tree import unlike
from draftwood_choices.search.word_bank import bank_grammar

SHORT = ("--max-new-tokens", "12", "--seed", "1")


def program(folder: Path, source: str, **limits: Any) -> Program:
    path = folder / "checker.py"
    path.write_text(source)
    return Program(path, **limits)


class Written(Proposer):
    """A proposer that hands out these texts, and keeps the prompts that it was given."""

    def __init__(self, texts: list[str], checker: Callable[[str], Judgement] | None) -> None:
        method = SimpleNamespace(drafter=SimpleNamespace(takes_prediction=False))
        lm = SimpleNamespace(method=method, model=SimpleNamespace(context_length=None))
        super().__init__(lm, checker)  # type: ignore[arg-type]
        self.texts, self.prompts = list(texts), list[str]()

    def write(self, prompt: Any, count: int = 1, **options: Any) -> tuple[Generation, ...]:
        self.prompts.append(prompt)
        made, self.texts = self.texts[:count], self.texts[count:]
        return tuple(Generation(text, [], "stop", "", "", Stats()) for text in made)


def test_a_program_judges_by_the_number_on_its_last_line(tmp_path: Path) -> None:
    source = "import sys\nprint('so')\nprint(len(sys.stdin.read()) / 10, 'of ten')"
    assert program(tmp_path, source)("abc") == Judgement(0.3, "of ten")
    assert program(tmp_path, source)("abcdefghij").passed


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "printed nothing"),
        ("print('good')", "printed no score: 'good'"),
        ("print('nan')", "printed no score"),
        ("raise ValueError('broken')", "exit code 1: ValueError: broken"),
        ("x = bytearray(1 << 30)\nprint(1)", "MemoryError"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    ],
)
def test_a_program_that_gives_no_score_is_told_in_one_line(
    tmp_path: Path, source: str, told: str
) -> None:
    found = program(tmp_path, source, memory=1 << 28)("answer")
    assert found.score is None
    assert told in found.note
    assert "\n" not in found.note


def test_a_program_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    )
    since = time.monotonic()
    found = program(tmp_path, source, seconds=1.0)("answer")
    assert "more than 1 s" in found.note
    assert time.monotonic() - since < 20


def test_patterns_and_schemas() -> None:
    assert Pattern("^b+$")("a\nbb\nc") == Judgement(1.0, "bb")
    assert not Pattern("x")("abc").passed
    schema = Schema('{"type": "object", "required": ["a"]}')
    assert schema('{"a": 1}').passed
    assert "required" in schema("{}").note
    assert "no JSON" in schema("so").note
    dangling = Schema('{"$ref": "#/$defs/x"}')("1")
    assert dangling == Judgement(None, "the schema has no /$defs/x")
    nested = Schema('{"type": "array", "items": {"$ref": "#"}}')
    assert nested("[[]]").passed
    assert nested("[" * 900 + "]" * 900).score is None
    for text in ('{"type": 3}', "[]", "so"):
        with pytest.raises(ValueError, match="schema"):
            Schema(text)
    with pytest.raises(ValueError, match="no regular expression"):
        checker_of("regex:(", 1.0, 1)
    with pytest.raises(ValueError, match="there is no checker"):
        checker_of("absent.py", 1.0, 1)


def test_a_pattern_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    endless, text = r"(?:a|a|aa)+c", "a" * 60
    checker = checker_of(f"regex:{endless}", 0.05, 1)
    assert checker(text) == Judgement(None, "the pattern took more than 0.05 s")
    assert checker("aac").passed
    for schema, answer in (
        ({"pattern": endless}, text),
        ({"patternProperties": {endless: {"type": "null"}}}, {text: None}),
    ):
        limited = Schema(json.dumps(schema), 0.05)
        told = "a pattern of the schema took more than 0.05 s"
        assert limited(json.dumps(answer)) == Judgement(None, told)
        assert limited(json.dumps("aac" if answer is text else {"aac": None})).passed
        assert limited(json.dumps("b" if answer is text else {"aac": 1})).passed is False
    monkeypatch.setattr(proposals, "LONGEST_LOOK", 0.05)
    final = pattern_of("--final", endless)
    assert final_answer("aac, aaac", final) == "aaac"
    with pytest.raises(
        ValueError, match=r"--final looked at an answer for 0\.05 s; give a simpler"
    ):
        final_answer(text, final)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_children_are_those_of_the_formula(depth: int) -> None:
    for value in (0.1, 0.5, 0.9):
        mean = (value + 0.6 / depth) / (1 + 1 / depth)
        wanted = math.ceil(math.log(0.1) / (depth * math.log(1 - mean)))
        assert children(value, 0.6, depth) == min(wanted, CHILDREN)
    assert children(0.0, 0.0, depth) == CHILDREN
    assert children(1.0, 1.0, depth) == 1
    for least in (1e-9, 1e-17, 5e-324):
        assert children(least, least, depth) == CHILDREN
    assert children(0.1, 0.1, depth) >= children(0.9, 0.9, depth)


@pytest.mark.parametrize("ignores", [False, True])
def test_an_end_token_ends_a_step_unless_it_is_ignored(ignores: bool) -> None:
    lm = SimpleNamespace(
        end_tokens={7},
        tokenizer=SimpleNamespace(decode=lambda tokens, **options: "a" * len(tokens)),
        encode=lambda prompt, raw: [1],
        text_before=lambda tokens, raw: tokens,
        shown_tokens={},
    )
    made = (Generation("a", [7], "length", "", "", Stats()),)
    proposer: Any = SimpleNamespace(
        **{"lm": lm, "head": None, "checker": None, "write": lambda *given, **options: made},
        **{"refuse": lambda *given: None, "context": None, "raw": False},
        options={"max_new_tokens": 4, "ignore_eos": ignores},
    )
    tree = StepTree(proposer, "b")
    (step,) = tree.children(tree.root, 1)
    assert (step.text, step.is_whole) == ("a", not ignores)


def test_help_tells_no_temperature_that_a_method_does_not_have() -> None:
    told = " ".join(run("solve", "--help").stdout.split())
    assert "0 is greedy decoding. [default: the method's]" in told
    assert "wrote, for best-of, lite-search, breadth-first." in told


def test_final_answers() -> None:
    assert final_answer("It is 3, so 1,234.") == "1234"
    assert final_answer("First.\nBlue ") == final_answer("“**Blue**.”") == "blue"
    assert final_answer("?!") == "?!"
    for told in ("-1,000", "-1000.0", "so -01000.", "$-1000.00"):
        assert final_answer(told) == "-1000"
    assert [final_answer(each) for each in ("-0.0", "100", "0.50")] == ["0", "100", "0.5"]
    assert [final_answer(each) for each in ("$.50", "\u2212.5", "v1.5.")] == ["0.5", "-0.5", "1.5"]
    assert final_answer("A\n\u00a0Blue") == "blue"
    assert final_answer("#### a\n#### b", pattern_of("--final", "#### (.)")) == "b"


def test_equal_numbers_are_one_vote() -> None:
    said = ["$20", "$18.00", "$18", "20 dollars", "$18.00", "18."]
    found = METHODS["majority"].search(Written(said, None), "?", SearchOptions(6))
    assert found.details == {"final": "18", "votes": {"18": 4, "20": 2}}
    assert found.best.text == "$18.00"


def test_paraphrases_are_left_out_and_the_bank_holds_all_words() -> None:
    assert unlike(["Where is it?", "where IS it", "", "Who was it?"]) == [
        "Where is it?",
        "Who was it?",
    ]
    assert '"Rome" | "is"' in bank_grammar("Rome is?")
    assert 'word: "Anna" | "Anna\'s" | "by"\n' in bank_grammar("by Anna's")
    with pytest.raises(ValueError, match="holds no word"):
        bank_grammar("?!")


def test_iad_shows_the_best_and_the_worst_and_never_gets_worse() -> None:
    def by_length(text: str) -> Judgement:
        return Judgement(None, "odd") if text == "odd" else Judgement(len(text) / 10)

    written = Written(["aa", "aaaa", "odd", "a", "b", "bb"], by_length)
    found = iad.search(written, "task", SearchOptions(answers=2, rounds=3))
    assert found.best.text == "aaaa"
    assert written.prompts[0] == "task"
    assert "0.4 of 1:\naaaa\n" in written.prompts[1]
    assert "0.2 of 1:\naa\n" in written.prompts[1]
    assert "0.1 of 1:\na\n" in written.prompts[2]  # the worst of round 2
    assert written.spent.judge_faults == 1
    passing = Written(["a" * 10, "b", "c"], by_length)
    assert iad.search(passing, "task", SearchOptions(2, 3)).details == {"rounds": 1}


PLANS = ["1. open\n2. take\n3. eat", "1. open\n2. look\n3. eat", "- fly\n- eat"]


def world(text: str) -> Judgement:
    """A world in which nothing can be taken, and looking comes before eating."""
    actions = text.split("\n")
    if actions[-1] in ("take", "fly"):
        return Judgement(-1.0, "impossible")
    if actions[-1] == "eat":
        return Judgement(1.0 if "look" in actions else -1.0, "eaten")
    return Judgement(0.1 * len(actions), f"after {actions[-1]}")


def test_a_walk_through_plans_goes_back_from_what_cannot_be_done() -> None:
    # the votes, for which nobody writes anything, are for the first
    written = Written(PLANS, world)
    found = plan_tree.search(written, "task", SearchOptions(3, 50))
    assert found.best.text == "open\nlook\neat"
    assert found.details == {"plans": 3, "unknown_plans": 0, "corrections": 1}
    assert [each.step for each in found.proposals] == ["", "open", "take", "look", "eat"]
    assert "Seen: after open" in written.prompts[2]


def test_votes_choose_and_dead_ends_lead_back_to_the_root() -> None:
    written = Written([*PLANS, *["2"] * plan_tree.VOTES], world)
    found = plan_tree.search(written, "task", SearchOptions(3, 50))
    assert [each.step for each in found.proposals][:2] == ["", "fly"]
    assert found.best.judgement is not None
    assert found.best.judgement.passed
    stopped = plan_tree.search(Written(PLANS, world), "task", SearchOptions(3, 1))
    assert stopped.best.text == "open"


def test_plans_with_unknown_actions_are_left_out_and_told_in_a_line() -> None:
    assert plan_of("1) a b\n\n* c") == ["a b", "c"]
    known = pattern_of("--final", "open|take|look|eat")
    found = plan_tree.search(Written(PLANS, world), "task", SearchOptions(3, 50, known))
    assert found.details["unknown_plans"] == 1
    assert found.notes == ("1 of 3 plans are left out, as 'fly' is no known action",)
    assert found.best.text == "open\nlook\neat"
    none = plan_tree.search(Written(["x", ""], world), "task", SearchOptions(2, 50, known))
    assert none.best.text == ""
    (told,) = none.notes
    assert "2 of 2 plans are left out, as 'x' is no known action; give more --answers" in told
    (empty,) = plan_tree.search(Written([" "], world), "task", SearchOptions(1, 50)).notes
    assert "they hold no action" in empty
    assert not plan_tree.search(Written(PLANS, world), "task", SearchOptions(3, 50)).notes


def test_a_plan_of_unknown_actions_is_one_line_and_the_rest_stays(target: str) -> None:
    asked = ("solve", "hello", "--model", target, "--method", "plan-tree", "--answers", "1")
    made = run(*asked, *SHORT, "--checker", "regex:.", "--final", "never")
    assert made.exit_code == 1
    told = [line for line in made.stderr.splitlines() if "left out" in line]
    assert len(told) == 1
    assert told[0].startswith("1 of 1 plans are left out, as ")
    assert "Traceback" not in made.stderr


@pytest.mark.parametrize("method", sorted({*METHODS} - {"thought-tree", "answer-mask"}))
def test_every_method_answers_and_tells_what_it_took(target: str, method: str) -> None:
    count = "1" if method == "plan-tree" else "3"  # votes need a model that ends its texts
    asked = ("solve", "hello", "--model", target, "--method", method, "--answers", count, *SHORT)
    asked += ("--rounds", "2") * (METHODS[method].rounds > 1)
    made = run(*asked, "--checker", "regex:.", "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["passed"]
    assert found["method"] == method
    assert found["text"] in [each["text"] for each in found["answers"]]
    spent = found["spent"]
    assert spent["tokens"] > 0
    assert spent["judge_calls"] > 0
    again = json.loads(run(*asked, "--checker", "regex:.", "--json").stdout)
    assert again["answers"] == found["answers"]


def test_best_of_takes_the_answers_of_single_requests(target: str) -> None:
    asked = ("--model", target, "--temperature", "0.7", "--max-new-tokens", "12")
    several = json.loads(
        run("solve", "hi", *asked, "--seed", "5", "--answers", "3", "--json").stdout
    )
    alone = [
        json.loads(run("generate", "hi", *asked, "--seed", f"{5 + n}", "--json").stdout)["text"]
        for n in range(3)
    ]
    assert [each["text"] for each in several["answers"]] == alone
    likeliest = max(several["answers"], key=lambda each: each["log_prob"])
    assert several["text"] == likeliest["text"]


def test_the_table_and_the_tree_are_told_beside_the_answer(target: str) -> None:
    asked = ("solve", "hello", "--model", target, "--method", "lite-search", "--rounds", "2")
    made = run(*asked, *SHORT, "--show", "--answers", "2")
    assert made.exit_code == 0, made.output
    assert "value" in made.stderr
    assert "task" in made.stderr.splitlines()
    assert "passes" in made.stderr
    described = run(*asked, *SHORT, "--show", "--answers", "2", "--json")
    assert "task" in described.stderr.splitlines()
    assert json.loads(described.stdout)["text"] + "\n" == made.stdout


def test_a_checker_that_fails_is_a_line_and_the_answer_stays(target: str, tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("")
    asked = ("solve", "hello", "--model", target, "--checker", str(silent), "--answers", "2")
    made = run(*asked, *SHORT)
    assert made.exit_code == 1
    assert made.stdout.strip()
    assert "no score for 2 answers: the checker printed nothing" in made.stderr


def test_bad_input_is_refused(target: str, tmp_path: Path) -> None:
    model = ("--model", target)
    (tmp_path / "checker").write_text("#!/bin/sh\n")
    told = refused("solve", "hi", *model, "--checker", str(tmp_path / "checker"))
    assert "make it executable" in told
    assert "give --checker" in refused("solve", "hi", *model, "--method", "iad")
    assert "there is no checker" in refused("solve", "hi", *model, "--checker", "absent.py")
    assert "--final is no regular" in refused(
        "solve", "hi", *model, "--method", "majority", "--final", "("
    )
    assert "Missing argument" in refused("solve", *model)
    assert "holds no word" in refused("solve", "?!", *model, "--method", "thought-tree")
    for more in (("--stop", "a"), ("--prediction", str(tmp_path / "checker"))):
        told = refused("solve", "hi", *model, "--method", "distinct", *more)
        wanted = f"method 'distinct' does not take {more[0][2:]}; leave it out, or take another"
        assert wanted in told
    (tmp_path / "a.lark").write_text('start: "a"')
    grammar = ("--grammar", str(tmp_path / "a.lark"))
    for method in ("lite-search", "breadth-first"):
        for more in (("--stop", "a"), ("--min-tokens", "2"), grammar):
            said = refused("solve", "hi", *model, "--method", method, *more)
            assert f"{more[0]} is not for this method" in said
    for method in ("answer-mask", "thought-tree"):
        for more in (grammar, ("--min-tokens", "3")):
            said = refused("solve", "hi", *model, "--method", method, *more)
            assert "words of the task alone" in said
    walk = ("--method", "plan-tree", "--checker", "regex:.", "--min-tokens", "3")
    assert "its votes have a grammar" in refused("solve", "hi", *model, *walk)
    told = refused("solve", "hi", *model, "--method", "best-of", "--rounds", "9")
    assert "best-of has no rounds; leave --rounds out, or take iad" in told
    for option in ("--answers", "--temperature"):
        told = refused("solve", "hi", *model, "--method", "answer-mask", option, "1")
        assert f"answer-mask writes one greedy answer; leave {option} out" in told
    told = refused("solve", "hi", *model, "--method", "iad", "--checker", "regex:.", "--final", "x")
    assert "iad reads no final answers; leave --final out, or take majority, plan-tree" in told


def test_options_that_would_do_nothing_are_refused_before_anything_is_loaded(
    target: str, tmp_path: Path
) -> None:
    nowhere = ("solve", "hi", "--model", "/nowhere")
    (store := tmp_path / "texts.store").write_text("")
    for option, given in (("--draft-model", target), ("--datastore", str(store))):
        told = refused(*nowhere, "--method", "distinct", option, given)
        assert f"distinct drafts nothing; leave {option} out" in told
    told = refused(*nowhere, "--rules", "pause")
    assert "the model's own texts, and pause may change them; leave out of --rules" in told
    assert "--inexact" not in told
    assert "/nowhere" in refused(*nowhere, "--rules", "momentum")
    limits = ("--checker-seconds", "5", "--checker-memory", "64")
    told = refused(*nowhere, *limits)
    assert "leave --checker-seconds and --checker-memory out, or add --checker" in told
    assert "/nowhere" in refused(*nowhere, *limits, "--checker", "regex:.")


def test_a_vote_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = ["open\ntake", "look\ntake"]
    monkeypatch.setattr(Written, "room", lambda self, prompt: 0 if "comes next" in prompt else 9)
    written = Written(plans, lambda text: Judgement(float("take" in text)))
    found = plan_tree.search(written, "task", SearchOptions(2, 9))
    assert found.best.text == "open\ntake"
    assert any("a vote would not fit" in each for each in found.notes)
    assert written.prompts == ["task"]


def test_a_thought_tree_ends_where_the_context_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Written, "room", lambda self, prompt: 100)
    written = Written(["Rome"], lambda text: Judgement(1.0))
    found = thought_tree.search(written, "Where is Rome?", SearchOptions(2, 3))
    assert found.details["expansions"] == 0
    assert found.notes == ["the tree grows no further: None tokens are full"]
    assert found.best.text == "Rome"


def test_of_one_answer_nobody_says_none_passed(target: str) -> None:
    asked = ("solve", "hi", "--model", target, "--answers", "3", *SHORT, "--checker", "regex:\x07")
    assert "no answer passed the checker" in run(*asked, "--method", "best-of").stderr
    told = run(*asked, "--method", "majority").stderr
    assert "the chosen answer did not pass the checker" in told


@pytest.mark.parametrize("method", ["lite-search", "breadth-first", "iad"])
def test_answers_end_where_the_context_is_full(forgetful: str, method: str) -> None:
    asked = ("--method", method, "--checker", "regex:[0-9]{9}", "--answers", "2")
    asked += ("--rounds", "2") * (method != "breadth-first")
    more = ("--max-new-tokens", "90", "--raw", "--json")
    made = run("solve", "a" * 25, "--model", forgetful, *asked, *more)  # of 32 tokens
    assert made.exit_code in (0, 1), made.output
    found = json.loads(made.stdout)
    assert found["text"]
    if method == "iad":
        assert found["details"]["rounds"] == 1
        assert "no further round" in found["notes"][-1]


@pytest.mark.model
def test_a_masked_answer_has_words_of_the_task_alone() -> None:
    task = "The fox went home. The fox ate soup, and then it slept. The next day the"
    command = ("--model", "smollm2-135m", "--raw", "--max-new-tokens", "12", "--json")
    made = run("solve", task, "--method", "answer-mask", *command)
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)["text"]
    free = json.loads(run("generate", task, "--temperature", "0", *command).stdout)["text"]
    known = set(re.findall(r"\w+", task))
    *whole, _ = re.findall(r"\w+", found)  # the last word may be cut
    assert len(whole) >= 3
    assert {*whole} <= known
    assert not {*re.findall(r"\w+", free)[:-1]} <= known  # the control


@pytest.mark.model
def test_answers_of_a_thought_tree_have_words_of_the_task_alone() -> None:
    task = "Anna lives in Rome. Rome is in Italy. In which country does Anna live?"
    asked = ("solve", task, "--model", "smollm2-135m", "--method", "thought-tree", "--json")
    made = run(*asked, "--answers", "2", "--rounds", "1", "--seed", "1")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert set(re.findall(r"\w+", found["text"])) <= set(re.findall(r"\w+", task))
    assert found["details"]["expansions"] == 1
    chained = [each for each in found["answers"] if each["above"] == 0]
    assert chained
    assert all(0.0 <= each["value"] <= 1.0 for each in chained)
