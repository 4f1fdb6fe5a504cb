"""Scores of answers."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from draftwood.optional import install_command
from draftwood.testing import TableModel
from draftwood_bench.plan.prompt import Instruction, Prompt
from draftwood_bench.run import instructions
from draftwood_bench.run.instructions import follows
from draftwood_bench.run.quality import bleu, last_number, log_likelihood, quality, rouge_l, score

LAW = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
MODEL = TableModel(LAW.log())


def test_rouge_l() -> None:
    assert rouge_l("The cat sat.", "the cat sat") == 1.0
    assert rouge_l("a b c", "a x b") == pytest.approx(2 / 3)
    assert rouge_l("a b c d", "b a c") == pytest.approx(2 * 2 / 7)  # b c or a c, in their order
    assert rouge_l("c b a", "a b c") == pytest.approx(1 / 3)
    assert rouge_l("", "a b") == rouge_l("", "") == 0.0


def test_bleu_falls_with_every_wrong_word() -> None:
    reference = "two men are walking a dog on the beach"
    right, one_off, wrong = (
        bleu(text, reference)
        for text in (reference, reference.replace("dog", "cat"), "a house stands in the snow")
    )
    assert right == pytest.approx(100.0)
    assert 30.0 < one_off < 90.0
    assert wrong < 10.0


def test_the_last_number() -> None:
    assert last_number("3 and 1,204.5 apples.") == 1204.5
    assert last_number("minus -7") == -7
    assert last_number("none") is None
    assert (
        last_number(r"She earns \(\boxed{1,195 \text{ dollars}}\) every 3 days, 7 a week.") == 1195
    )
    assert last_number(r"\boxed{2}, so \boxed{x} is 4") == 4


def test_log_likelihood_under_the_model() -> None:
    wanted = torch.tensor([0.25, 0.8, 0.1]).log().mean()
    assert log_likelihood(MODEL, [2, 0], [1, 1, 2]) == pytest.approx(float(wanted))
    assert log_likelihood(MODEL, [0], [1, 1, 2]) == pytest.approx(float(wanted))


def test_the_score_that_a_prompt_allows() -> None:
    def score(**more: str) -> dict | None:
        return quality(Prompt("1", "all", ("?",), **more), "so 4", MODEL, [0], [0])  # type: ignore[arg-type]

    assert score(answer="4") == {"name": "right number", "value": 1.0}
    assert score(answer="4,000") == {"name": "right number", "value": 0.0}
    assert quality(Prompt("1", "all", ("?",), answer="4,000"), "4000.", MODEL, [0], [0]) == {
        **{"name": "right number", "value": 1.0}
    }
    assert score(answer="5") == {"name": "right number", "value": 0.0}
    assert score(reference="so 4") == {"name": "ROUGE-L", "value": 1.0}
    assert score() == {"name": "log-likelihood per token", "value": pytest.approx(-0.6931)}
    assert quality(Prompt("1", "all", ("?",)), "", MODEL, [0], []) is None


def test_instructions_count_together() -> None:
    pytest.importorskip("lm_eval", reason="needs draftwood-bench[instructions]")
    calm = Instruction("punctuation:no_comma")
    long = Instruction("length_constraints:number_words", {"relation": "at least", "num_words": 4})
    asked = Prompt("p", "instructions", ("Go on.",), instructions=(calm, long))
    assert follows(asked, "one two three four") == [True, True]
    assert follows(asked, "one, two") == [False, False]
    assert follows(asked, " ") == [False, False]  # an empty answer follows nothing
    named = "instructions followed"
    assert score(asked, "one two") == {"name": named, "value": 0.0}
    assert score(asked, "one two three four") == {"name": named, "value": 1.0}
    unknown = replace(asked, instructions=(Instruction("rhyme"),))
    with pytest.raises(ValueError, match="no kind of instruction 'rhyme'; known: keywords"):
        follows(unknown, "one")


def test_checkers_of_instructions_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langdetect", None)
    instructions._kinds.cache_clear()
    asked = Prompt("p", "instructions", ("Go on.",), instructions=(Instruction("any"),))
    with pytest.raises(
        ModuleNotFoundError, match=re.escape(install_command("draftwood-bench[instructions]"))
    ):
        follows(asked, "one")
    instructions._kinds.cache_clear()
