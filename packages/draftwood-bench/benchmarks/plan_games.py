"""Plans merged into a tree beside one call per action, on TextWorld games nobody trained on.

    pip install 'draftwood-bench[games]' 'draftwood-choices[bench]'
    cd packages/draftwood-bench && python -m benchmarks.plan_games FOLDER

Trains a Llama of a million parameters on walkthroughs of other games: to write a plan, the next
action, or the number of the action that comes next. Then plays games that it has not seen. A
stopped run goes on there.

``plan-tree`` (Hu et al. 2023, arXiv:2310.08582) writes N plans at once and walks their tree. The
other way asks for each action anew, with what was done and what is seen: greedily, and up to ten
times more at temperature 0.7 where the game does not admit the action. N is chosen on games of its
own: the fewest tokens of those that solve no fewer games than one call per action. Tokens are those
that a server would bill: of each call the prompt, once however many answers share it, and what was
written. ``plan-tree`` goes back by beginning the game again, which costs no tokens; so the games'
actions are counted too.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import draftwood
from benchmarks.search_sums import cost_ratio
from benchmarks.text_world import Game, World, make
from draftwood_bench.records.statistics import difference
from draftwood_choices.records import RecordFolder
from draftwood_choices.search import plan_tree
from draftwood_choices.search.methods import SearchOptions
from draftwood_choices.search.proposals import Proposer

END = "<end>"
VOCABULARY, WIDTH, LAYERS = 2048, 128, 3
BATCH, STEPS, EVERY, RATE = 8, 6000, 100, 1.5e-3
ENOUGH = 0.5
"""Share of the games held out whose greedy plan is the walkthrough when training stops."""
TAUGHT, HELD, CHOSEN, ASKED = range(1000, 1400), range(100, 140), range(60, 100), range(60)
"""Seeds of games: to train on, to stop by, to choose N on, and to measure."""
PLANS = (2, 4, 8)
MOST, AGAIN = 30, 10
"""Actions in a game, and calls more for an action that was not admitted."""
ONE_PLAN, BY_ACTION, TREE = "one greedy plan", "one call per action", "plan-tree"


def plan_prompt(objective: str, seen: str) -> str:
    return f"{objective}\nSeen: {seen}\nPlan:\n"


def action_prompt(objective: str, done: Sequence[str], seen: str) -> str:
    return (
        f"{objective}\nDone so far: {'; '.join(done) or 'nothing'}\nSeen: {seen}\n"
        "What comes next?\n"
    )


def choice_prompt(game: Game, place: int, offered: Sequence[str]) -> str:
    """A vote as ``plan-tree`` asks for it."""
    asked = plan_tree.CHOOSE.format(
        done="; ".join(game.walkthrough[:place]) or "nothing",
        seen=game.scenes[place] if place else "nothing",
        choices="\n".join(f"{n}. {each}" for n, each in enumerate(offered, 1)),
    )
    return plan_prompt(game.objective, game.scenes[0]) + asked


def tokenizer(games: Sequence[Game]) -> PreTrainedTokenizerFast:
    """Byte pairs of the games' texts."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    texts = [text for game in games for text in (game.objective, *game.walkthrough, *game.scenes)]
    texts += [choice_prompt(game, 0, [str(n) for n in range(10)]) for game in games]
    words.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=END)


class Trainer:
    """Trains the policy.

    Args:
        taught: games whose walkthroughs it learns.
        held: games by which training is stopped.
    """

    def __init__(self, taught: Sequence[Game], held: Sequence[Game]) -> None:
        torch.manual_seed(0)
        self.rng, self.held = random.Random(1), held
        told = {each.objective for each in held}
        self.taught = [game for game in taught if game.objective not in told]
        self.names = sorted({name for game in taught for name in game.names})
        self.tokenizer = tokenizer(self.taught)
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
        self.model = LlamaForCausalLM(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01)
        self.step = 0

    def train(self, folder: Path) -> None:
        """Train until greedy plans win most games held out; the folder is written last."""
        file = folder.with_suffix(".pt")
        if file.is_file():
            kept = torch.load(file)
            self.step, self.rng = kept["step"], random.Random(kept["step"])
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
        while self.step < STEPS and not self._several_steps():
            kept = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**kept, "step": self.step}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        self.tokenizer.save_pretrained(folder)
        self.model.save_pretrained(folder)

    def _several_steps(self) -> bool:
        """Train up to the next look; True once enough plans are right."""
        losses = list[float]()
        for _ in range(EVERY):
            self.step += 1
            for group in self.optimizer.param_groups:
                group["lr"] = RATE * min(1.0, self.step / 50)
            loss = self._loss()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.item())
        right = self.right()
        told = f"step {self.step}: loss {np.mean(losses):.3f}, plans right {right:.0%}"
        print(told, flush=True)
        return right >= ENOUGH

    def example(self) -> tuple[str, str]:
        """A prompt and its answer, from a game with other names."""
        game = self.rng.choice(self.taught).renamed(self.rng, self.names)
        place, kind = self.rng.randrange(len(game.walkthrough)), self.rng.random()
        if kind < 0.5:
            return plan_prompt(game.objective, game.scenes[0]), "\n".join(game.walkthrough)
        if kind < 0.8:
            done = game.walkthrough[:place]
            return action_prompt(game.objective, done, game.scenes[place]), game.walkthrough[place]
        right = game.walkthrough[place]
        others = [each for each in game.walkthrough if each != right]
        others.append(f"{right.split()[0]} {self.rng.choice(game.names)}")
        offered = [right, *self.rng.sample(others, self.rng.randint(1, min(3, len(others))))]
        self.rng.shuffle(offered)
        return choice_prompt(game, place, offered), str(offered.index(right) + 1)

    def _loss(self) -> torch.Tensor:
        """Cross-entropy of answers."""
        rows, labels = list[list[int]](), list[list[int]]()
        for prompt, answer in (self.example() for _ in range(BATCH)):
            asked = self.tokenizer(prompt)["input_ids"]
            wanted = [*self.tokenizer(answer)["input_ids"], 0]
            rows.append([*asked, *wanted])
            labels.append([*([-100] * len(asked)), *wanted])
        longest = max(map(len, rows))
        rows = [[*row, *([0] * (longest - len(row)))] for row in rows]
        labels = [[*row, *([-100] * (longest - len(row)))] for row in labels]
        return self.model(input_ids=torch.tensor(rows), labels=torch.tensor(labels)).loss

    def right(self) -> float:
        """Share of games held out whose walkthrough is the greedy plan."""
        self.tokenizer.padding_side = "left"
        asked = [plan_prompt(game.objective, game.scenes[0]) for game in self.held]
        read = self.tokenizer(asked, return_tensors="pt", padding=True)
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=read["input_ids"],
                attention_mask=read["attention_mask"],
                max_new_tokens=100,
                do_sample=False,
            )
        texts = self.tokenizer.batch_decode(
            made[:, read["input_ids"].shape[1] :], skip_special_tokens=True
        )
        pairs = zip(texts, self.held, strict=True)
        return float(np.mean([text == "\n".join(game.walkthrough) for text, game in pairs]))


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


def played(folder: Path, model: Path) -> Results:
    """Play all games in all ways; what is recorded already is read."""
    records = RecordFolder(folder, "games", Played)
    records.begin({"plans": PLANS, "chosen": str(CHOSEN), "asked": str(ASKED), "most": MOST})
    found: Results = {}
    for each in records.read():
        found.setdefault(each.point, {})[each.seed] = each
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
