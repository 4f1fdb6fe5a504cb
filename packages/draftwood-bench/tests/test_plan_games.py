"""Plans against calls: what the player sees, what is counted, and when the bar holds."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks import game_policy, plan_games
from benchmarks.plan_games import BY_ACTION, TREE, Billed, Played, by_action, by_tree
from benchmarks.text_world import Game, World, make, scene
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood.text.stream import Generation
from draftwood_choices.search.checkers import Judgement

FACTS = [
    ("at", "P", "attic"),
    ("at", "box", "attic"),
    ("closed", "box"),
    ("in", "pear", "box"),
    ("at", "shelf", "attic"),
    ("on", "cup", "shelf"),
    ("in", "key", "I"),
    ("at", "mouse", "cellar"),
    ("south_of", "cellar", "attic"),
    ("link", "attic", "hatch", "cellar"),
    ("locked", "hatch"),
    ("east_of", "studio", "attic"),
]
GAME = Game(
    7,
    "Unlock the hatch, then go south.",
    ["unlock hatch with key", "go south"],
    ["attic; key", "attic; hatch"],
    ["attic", "hatch", "key"],
)


def test_players_see_their_room_and_nothing_in_closed_boxes() -> None:
    assert scene(FACTS) == (
        "attic; here box (closed), shelf (cup); exits east, south by hatch (locked); carried key"
    )
    opened = [("open", "box") if each == ("closed", "box") else each for each in FACTS]
    assert "box (open, pear)" in scene(opened)


def test_renamed_games_keep_their_sense() -> None:
    found = GAME.renamed(random.Random(0), [f"thing{n}" for n in range(20)])
    assert len({*found.names}) == 3
    assert not {*found.names} & {*GAME.names}
    new = dict(zip(GAME.names, found.names, strict=True))
    assert found.walkthrough[0] == f"unlock {new['hatch']} with {new['key']}"
    assert found.scenes[1] == f"{new['attic']}; {new['hatch']}"


class Toy:
    """A world in which a hatch is unlocked and gone through."""

    def __init__(self) -> None:
        self.done = list[str]()

    @property
    def ended(self) -> bool:
        return self.done == GAME.walkthrough

    scene = "attic"

    def act(self, command: str) -> bool:
        fits = not self.ended and command == GAME.walkthrough[len(self.done)]
        self.done += [command] * fits
        return fits

    def __call__(self, answer: str) -> Judgement:
        lines = answer.split("\n")
        if lines != GAME.walkthrough[: len(lines)]:
            return Judgement(-1.0, "no")
        return Judgement(float(lines == GAME.walkthrough), "attic")


class Handed(Billed):
    """Hands out texts; a prompt has as many tokens as words."""

    def __init__(self, texts: list[str], checker: Callable[[str], Judgement]) -> None:
        lm: Any = SimpleNamespace(
            method=SimpleNamespace(drafter=SimpleNamespace(takes_prediction=False)),
            encode=lambda prompt: prompt.split(),
            generate=self.generate,
            model=SimpleNamespace(context_length=None),
        )
        super().__init__(lm, checker)
        self.texts, self.prefixes, self.prompts = texts, None, list[str]()

    def generate(self, prompt: str, n: int, **options: Any) -> Any:
        self.prompts.append(prompt)
        made, self.texts = self.texts[:n], self.texts[n:]
        stats = Stats()
        return SimpleNamespace(
            answers=[Generation(text, [], "stop", "", "", stats) for text in made]
        )


def test_each_call_pays_its_prompt_and_refused_actions_are_asked_again() -> None:
    world = Toy()
    proposer = Handed(["fly", "unlock hatch with key", "go south", "more"], world)
    assert by_action(proposer, GAME, world) == {"corrections": 1}  # type: ignore[arg-type]
    assert world.ended
    assert proposer.calls == 3
    first = plan_games.action_prompt(GAME.objective, [], "attic")
    second = plan_games.action_prompt(GAME.objective, GAME.walkthrough[:1], "attic")
    assert proposer.read == 2 * len(first.split()) + len(second.split())


def test_calls_end_where_no_action_is_admitted() -> None:
    proposer = Handed(["fly"] * 40, Toy())
    found = by_action(proposer, GAME, Toy())  # type: ignore[arg-type]
    assert found == {"corrections": 1 + plan_games.AGAIN}


def test_a_tree_of_plans_reads_its_prompt_once() -> None:
    plans = ["\n".join(GAME.walkthrough), "\n".join(GAME.walkthrough), GAME.walkthrough[0]]
    proposer = Handed(plans, Toy())
    found = by_tree(proposer, GAME, 3)
    assert found == {"plans": 3, "unknown_plans": 0, "corrections": 0}
    assert proposer.calls == 1
    assert proposer.read == len(plan_games.plan_prompt(GAME.objective, GAME.scenes[0]).split())


def test_votes_are_taught_as_they_are_asked() -> None:
    first, last = GAME.walkthrough
    proposer = Handed([f"{first}\n{last}", f"{first}\nfly", *["1"] * 20], Toy())
    by_tree(proposer, GAME, 2)
    seen = replace(GAME, scenes=[GAME.scenes[0], Toy.scene])
    assert proposer.prompts[1] == game_policy.choice_prompt(seen, 1, [last, "fly"])


def test_a_task_is_told_without_its_greeting() -> None:
    assert game_policy.task("Hello! First of all, go east.") == "First of all, go east."
    assert game_policy.task("Hello! Your first task is to nap.") == "Your first task is to nap."
    assert game_policy.task(GAME.objective) == GAME.objective


@pytest.mark.parametrize(("kind", "ends"), [(0.2, "Plan:\n"), (0.7, "next?\n"), (0.9, "number.")])
def test_plans_actions_and_votes_are_taught(kind: float, ends: str) -> None:
    for seed in range(9):
        prompt, answer = game_policy.example(GAME, kind, random.Random(seed))
        assert prompt.endswith(ends)
        if kind == 0.2:
            assert answer.split("\n") == GAME.walkthrough
        elif kind == 0.7:
            place = GAME.walkthrough.index(answer)
            assert GAME.scenes[place] in prompt
            assert ("nothing" in prompt) == (place == 0)
        else:
            assert any(f"\n{answer}. {each}\n" in prompt for each in GAME.walkthrough)


def tiny_policy(*_: object, **__: object) -> SimpleNamespace:
    """A random model whose tokens are letters."""
    letters = [chr(n) for n in range(32, 127)]
    words = Tokenizer(models.WordLevel({each: n for n, each in enumerate(letters)}, unk_token="~"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    read = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="~", pad_token="~", unk_token="~"
    )
    return SimpleNamespace(model=tiny_llama(vocab=len(letters)), tokenizer=read)


def test_a_stopped_training_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"load_pretrained": tiny_policy, "EVERY": 2, "STEPS": 4, "BATCH": 2}.items():
        monkeypatch.setattr(game_policy, name, value)
    games = [replace(GAME, objective=f"First, open box {n}.") for n in range(3)]

    def trainer(right: Callable[[], float]) -> game_policy.Trainer:
        made = game_policy.Trainer(games, [games[0]])
        made.names = [f"thing {n}" for n in range(20)]
        monkeypatch.setattr(made, "right", right)
        return made

    def halt() -> float:
        if stopped.step > 2:
            raise KeyboardInterrupt
        return 0.0

    whole, stopped = trainer(lambda: 0.0), trainer(halt)
    whole.train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        stopped.train(tmp_path / "stopped")
    assert not (tmp_path / "stopped").exists()
    resumed = trainer(lambda: 0.0)
    resumed.train(tmp_path / "stopped")
    assert resumed.step == 4
    weights = [each.model.lm_head.weight for each in (whole, resumed, tiny_policy())]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def results(tree_solved: float, tree_tokens: int) -> plan_games.Results:
    def each(point: str, seed: int, solved: float, tokens: int) -> Played:
        return Played(point, seed, solved, 1, tokens - 1, 1, 5, 0)

    seeds = [*plan_games.CHOSEN, *plan_games.ASKED]
    return {
        BY_ACTION: {seed: each(BY_ACTION, seed, 0.5, 1000) for seed in seeds},
        **{
            point: {seed: each(point, seed, tree_solved, tree_tokens * n) for seed in seeds}
            for point, n in ((f"{TREE}, N = 2", 1), (f"{TREE}, N = 4", 2))
        },
    }


def test_the_bar_needs_both_tokens_and_success() -> None:
    assert plan_games.chosen(results(1.0, 200)) == f"{TREE}, N = 2"
    assert plan_games.told(results(1.0, 200)).endswith("success: holds")
    assert plan_games.told(results(0.4, 200)).endswith("does not hold")
    assert plan_games.told(results(1.0, 400)).endswith("does not hold")
    assert "0.50 [0.50, 0.50]" in plan_games.table(results(1.0, 200))


def test_a_walkthrough_wins_a_game_and_another_order_does_not(tmp_path: Path) -> None:
    pytest.importorskip("textworld", reason="needs draftwood-bench[games]")
    (game,) = make(tmp_path, [3])
    assert make(tmp_path, [3]) == [game]
    with World(tmp_path / "3.json") as world:
        scores = [
            world("\n".join(game.walkthrough[: n + 1])).score for n in range(len(game.walkthrough))
        ]
        assert scores == [0.0] * (len(scores) - 1) + [1.0]
        assert world.won
        assert world("\n".join(game.walkthrough[::-1])).score == -1.0  # begun again
        assert not world.won
        assert world("fly").score == -1.0
        assert not world.act("fly")
