"""Trees of steps and of thoughts: shares of a level, children once, and paths that win."""

from types import SimpleNamespace
from typing import Any

import pytest

from draftwood.stats import Stats
from draftwood.text.stream import Generation
from draftwood_choices.search import breadth_first, thought_tree
from draftwood_choices.search.lite_search import LiteSearch, StepTree
from draftwood_choices.search.methods import SearchOptions
from draftwood_choices.search.proposals import Proposer

END = 99


class Lines(Proposer):
    """A proposer of steps of one token each, which keeps how many were asked for.

    Args:
        drawn: tokens of each request, of which the last one's answers are taken ever after.
    """

    def __init__(self, *drawn: list[int]) -> None:
        lm = SimpleNamespace(
            end_tokens={END},
            model=SimpleNamespace(context_length=None),
            tokenizer=SimpleNamespace(decode=lambda tokens, **more: "".join(map(chr, tokens))),
            encode=lambda prompt, raw: [1],
            text_before=lambda tokens, raw: [],
            shown_tokens={},
        )
        super().__init__(lm)  # type: ignore[arg-type]
        self.drawn, self.counts = list(drawn), list[int]()

    def write(self, prompt: Any, count: int = 1, **options: Any) -> tuple[Generation, ...]:
        self.counts.append(count)
        made = self.drawn.pop(0) if len(self.drawn) > 1 else self.drawn[0]
        return tuple(
            Generation(chr(token), [token], "stop", "", "", Stats()) for token in made[:count]
        )


@pytest.mark.parametrize(
    ("answers", "shares"), [(8, [2, 2, 2, 1, 1]), (5, [1] * 5), (4, [1] * 4), (13, [3, 3, 3, 2, 2])]
)
def test_the_steps_of_a_level_share_all_answers(answers: int, shares: list[int]) -> None:
    proposer = Lines(list(range(65, 65 + answers)), [END])
    breadth_first.search(proposer, "task", SearchOptions(answers))
    assert proposer.counts == [answers, *shares]


def test_a_child_joins_the_tree_once_however_often_it_is_drawn() -> None:
    tree = StepTree(Lines([65], [65, 66, 66], [66, 65, 65]), "task")
    assert [each.text for each in tree.children(tree.root, 1)] == ["A"]
    assert [each.text for each in tree.children(tree.root, 3)] == ["B"]
    assert tree.children(tree.root, 3) == []
    first, second = tree.steps[1:]
    assert [each.text for each in tree.children(first, 1)] == ["AB"]  # below another step it is new
    assert second.above is tree.root


def test_a_step_of_which_nothing_new_is_drawn_is_expanded_once() -> None:
    greedy = Lines([65], [END], [65], [END])
    found = LiteSearch(greedy, "task", 1, 9)
    found.tree.values = lambda steps: [0.1] * len(steps)
    assert found.search().details == {"expansions": 2, "greedy_value": 0.1, "steps": 2}


class Thoughts(Proposer):
    """A proposer that hands out these texts, in order."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(SimpleNamespace(model=SimpleNamespace(context_length=None)))  # type: ignore[arg-type]
        self.texts = texts

    def write(self, prompt: Any, count: int = 1, **options: Any) -> tuple[Generation, ...]:
        made, self.texts = self.texts[:count], self.texts[count:]
        return tuple(Generation(text, [], "stop", "", "", Stats()) for text in made)


@pytest.mark.parametrize(
    ("below", "chain"),
    [
        (0.8, "Where? Rome\nWhich country? Italy"),  # 0.9 * 0.8, on average more than 0.4
        (0.1, "Who? Anna"),  # a path goes on from the other one
        (None, "Where? Rome"),  # nothing is asked below it
    ],
)
def test_a_thought_tree_answers_along_the_best_whole_path(
    below: float | None, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"Where? Rome": 0.9, "Who? Anna": 0.4, "Which country? Italy": below}

    def told(proposer: Proposer, prompt: Any, question: str, chain: str) -> float:
        own = values[chain.rpartition("\n")[2]] if question == thought_tree.VALID else 0.0
        assert own is not None
        return own

    monkeypatch.setattr(thought_tree, "yes", told)
    more = ["", ""] if below is None else ["Which country?", "", "Italy"]
    thoughts = Thoughts(["Where?", "Who?", "Rome", "Anna", *more, "Rome"])
    found = thought_tree.search(thoughts, "In which country is Rome?", SearchOptions(2, 2))
    assert found.details == {"expansions": 2, "chain": chain}


def test_a_thought_tree_without_any_question_answers_at_once() -> None:
    found = thought_tree.search(Thoughts(["", "", "Rome"]), "Where is Rome?", SearchOptions(2, 3))
    assert found.details == {"expansions": 1, "chain": ""}
    assert found.best.text == "Rome"
