"""Plans merged into a tree beside one call per action, on TextWorld games nobody trained on.

    pip install 'draftwood-bench[games]' 'draftwood-choices[bench]'
    cd packages/draftwood-bench && python -m benchmarks.plan_games FOLDER

Trains `stories-15m` further on walkthroughs of other games: to write a plan, the next action, or
the number of the action that comes next. Then plays games that it has not seen. A stopped run goes
on there.

``plan-tree`` (Hu et al. 2023, arXiv:2310.08582) writes N plans at once and walks their tree. The
other way asks for each action anew, with what was done and what is seen: greedily, and up to ten
times more at temperature 0.7 where the game does not admit the action. N is chosen on games of its
own: the fewest tokens of those that solve no fewer games than one call per action. Tokens are those
that a server would bill: of each call the prompt, once however many answers share it, and what was
written. ``plan-tree`` goes back by beginning the game again, which costs no tokens; so the games'
actions are counted too.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import draftwood
from benchmarks.game_policy import Trainer, action_prompt, plan_prompt
from benchmarks.search_sums import cost_ratio
from benchmarks.text_world import Game, World, make
from draftwood_bench.records.statistics import difference
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.search import plan_tree
from draftwood_choices.search.methods import SearchOptions
from draftwood_choices.search.proposals import Proposer

TAUGHT, HELD, CHOSEN, ASKED = range(1000, 1400), range(100, 120), range(60, 100), range(60)
"""Seeds of games: to train on, to stop by, to choose N on, and to measure."""
PLANS = (2, 3, 4, 8)
MOST, AGAIN = 30, 10
"""Actions in a game, and calls more for an action that was not admitted."""
ONE_PLAN, BY_ACTION, TREE = "one greedy plan", "one call per action", "plan-tree"


@dataclass(eq=False)
class Billed(Proposer):
    """A proposer that counts what it reads.

    Attributes:
        read: tokens of prompts, once for all answers to one.
        calls: of the model.
    """

    read: int = 0
    calls: int = 0

    def write(self, prompt: Any, count: int = 1, **options: Any) -> Any:
        self.read += len(self.lm.encode(prompt))
        self.calls += 1
        return super().write(prompt, count, **options)


@dataclass(frozen=True)
class Played:
    """One game at one point.

    Attributes:
        point: way to play.
        seed: of the game.
        solved: 1 where the game was won, else 0.
        calls: of the model.
        read, written: tokens.
        acted: commands that the game was given, those after beginning again too.
        refused: commands that it did not admit.
        details: of ``plan-tree``.
    """

    point: str
    seed: int
    solved: float
    calls: int
    read: int
    written: int
    acted: int
    refused: int
    details: dict[str, object] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.read + self.written


def by_tree(proposer: Billed, game: Game, plans: int) -> dict[str, object]:
    """Play by a tree of plans."""
    prompt = plan_prompt(game.objective, game.scenes[0])
    return plan_tree.search(proposer, prompt, SearchOptions(plans, MOST)).details


def by_one_plan(proposer: Billed, game: Game) -> dict[str, object]:
    """Play the greedy plan, to the first action that is refused."""
    proposer.options["temperature"] = 0.0
    return by_tree(proposer, game, 1)


def by_action(proposer: Billed, game: Game, world: World) -> dict[str, object]:
    """Ask for each action anew."""
    done, refused = list[str](), 0
    while not world.ended and len(done) + refused < MOST:
        prompt = action_prompt(game.objective, done, world.scene)
        for attempt in range(1 + AGAIN):
            warmth = 0.7 if attempt else 0.0
            (made,) = proposer.write(prompt, temperature=warmth, max_new_tokens=24)
            if world.act(made.text.strip()):
                done.append(made.text.strip())
                break
            refused += 1
        else:
            break
    return {"corrections": refused}


def play(lm: draftwood.LanguageModel, folder: Path, game: Game, point: str) -> Played:
    """Play a game in one way."""
    options = {"temperature": 0.8, "max_new_tokens": 100, "seed": 10_000 * game.seed}
    with World(folder / f"{game.seed}.json") as world:
        proposer = Billed(lm, world, options)
        ways: dict[str, Callable[[], dict[str, object]]] = {
            ONE_PLAN: lambda: by_one_plan(proposer, game),
            BY_ACTION: lambda: by_action(proposer, game, world),
            **{f"{TREE}, N = {n}": lambda n=n: by_tree(proposer, game, n) for n in PLANS},
        }
        details = ways[point]()
        solved, acted = float(world.won), world.acted
    refused = int(str(details.get("corrections", 0)))
    spent = proposer.spent.tokens
    return Played(
        *(point, game.seed, solved, proposer.calls, proposer.read, spent, acted, refused),
        details,
    )


Results = dict[str, dict[int, Played]]
"""Games by point and seed."""


def by_point(records: Iterable[Played]) -> Results:
    """Sort games by point and seed."""
    found: Results = {}
    for each in records:
        found.setdefault(each.point, {})[each.seed] = each
    return found


def played(folder: Path, model: Path) -> Results:
    """Play all games in all ways; what is recorded already is read."""
    records = RecordFolder(folder, "games", Played)
    records.begin({"plans": PLANS, "chosen": str(CHOSEN), "asked": str(ASKED), "most": MOST})
    found = by_point(records.read())
    lm = draftwood.load(str(model), method="plain", dtype="float32")
    for game in make(folder / "games", [*CHOSEN, *ASKED]):
        for point in (ONE_PLAN, BY_ACTION, *(f"{TREE}, N = {n}" for n in PLANS)):
            if game.seed not in found.setdefault(point, {}):
                found[point][game.seed] = made = play(lm, folder / "games", game, point)
                records.append(made)
    return found


def chosen(found: Results) -> str:
    """Number of plans: the cheapest that solves no fewer of the games to choose by."""
    trees = [point for point in found if point.startswith(TREE)]
    solved = {p: sum(found[p][seed].solved for seed in CHOSEN) for p in found}
    tokens = {p: sum(found[p][seed].tokens for seed in CHOSEN) for p in found}
    able = [point for point in trees if solved[point] >= solved[BY_ACTION]]
    return min(able, key=tokens.__getitem__) if able else max(trees, key=solved.__getitem__)


def table(found: Results) -> str:
    """A row for each point, over the games that are measured."""
    names = ("tokens", "read", "written", "calls", "acted", "refused")
    lines = [f"{'point':<22}{'solved [95 %]':<22}" + "".join(f"{name:>9}" for name in names)]
    for point, games in found.items():
        own = [games[seed] for seed in ASKED]
        share = difference(np.array([each.solved for each in own]))
        means = (np.mean([getattr(each, name) for each in own]) for name in names)
        lines.append(f"{point:<22}{share!s:<22}" + "".join(f"{each:>9.1f}" for each in means))
    return "\n".join(lines)


def told(found: Results) -> str:
    """Say what the tree saves, game by game, and what it loses."""
    point = chosen(found)
    tree, single = ([found[x][seed] for seed in ASKED] for x in (point, BY_ACTION))
    more = difference(np.array([x.solved - y.solved for x, y in zip(tree, single, strict=True)]))
    costs = {
        name: cost_ratio([getattr(x, name) for x in tree], [getattr(y, name) for y in single])
        for name in ("tokens", "written", "calls")
    }
    held = more.value >= 0.0 and costs["tokens"].value <= 0.3
    verdict = "holds" if held else "does not hold"
    ratios = ", ".join(f"{name} {each}" for name, each in costs.items())
    return (
        f"{point} (chosen on {len(CHOSEN)} other games) over {BY_ACTION}: solved {more}; {ratios}"
        f" times as many. 70 % fewer tokens at no less success: {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    model = folder / "model"
    if not (model / "model.safetensors").is_file():
        Trainer(make(folder / "games", TAUGHT), make(folder / "games", HELD)).train(model)
    found = played(folder, model)
    print(table(found), told(found), sep="\n")


if __name__ == "__main__":
    main()
