"""A small model that learns to play TextWorld games from walkthroughs, for `plan_games`."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.text_world import Game
from draftwood.loading.hub import load_pretrained
from draftwood_choices.search import plan_tree

MODEL = "stories-15m"
"""It copies names already, which a model trained on walkthroughs alone does not learn."""
QUEST = re.compile(r"\b(?:First|Your first)\b")
POSITIONS = 512
"""Context in tokens: 256 were trained before, which some votes exceed; more are learned here."""
BATCH, STEPS, EVERY, RATE = 8, 600, 50, 5e-4
ENOUGH = 0.9
"""Share of the games held out whose greedy plan is the walkthrough when training stops."""


def plan_prompt(objective: str, seen: str) -> str:
    return f"{task(objective)}\nSeen: {seen}\nPlan:\n"


def action_prompt(objective: str, done: Sequence[str], seen: str) -> str:
    return (
        f"{task(objective)}\nDone so far: {'; '.join(done) or 'nothing'}\nSeen: {seen}\n"
        "What comes next?\n"
    )


def task(objective: str) -> str:
    """An objective without its greeting."""
    found = QUEST.search(objective)
    return objective[found.start() :] if found else objective


def choice_prompt(game: Game, place: int, offered: Sequence[str]) -> str:
    """A vote as ``plan-tree`` asks for it."""
    asked = plan_tree.CHOOSE.format(
        done="; ".join(game.walkthrough[:place]) or "nothing",
        seen=game.scenes[place] if place else "nothing",
        choices="\n".join(f"{n}. {each}" for n, each in enumerate(offered, 1)),
    )
    return plan_prompt(game.objective, game.scenes[0]) + asked


def example(game: Game, kind: float, rng: random.Random) -> tuple[str, str]:
    """A prompt and its answer: a plan, an action, or a vote, as a number from 0 to 1 says."""
    place = rng.randrange(len(game.walkthrough))
    right = game.walkthrough[place]
    if kind < 0.5:
        return plan_prompt(game.objective, game.scenes[0]), "\n".join(game.walkthrough)
    if kind < 0.8:
        done = game.walkthrough[:place]
        return action_prompt(game.objective, done, game.scenes[place]), right
    others = [each for each in game.walkthrough if each != right]
    others.append(f"{right.split()[0]} {rng.choice(game.names)}")
    offered = [right, *rng.sample(others, rng.randint(1, min(3, len(others))))]
    rng.shuffle(offered)
    return choice_prompt(game, place, offered), str(offered.index(right) + 1)


class Trainer:
    """Trains the policy, from the weights of a model that tells stories.

    Args:
        taught: games whose walkthroughs it learns.
        held: games by which training is stopped.
    """

    def __init__(self, taught: Sequence[Game], held: Sequence[Game]) -> None:
        torch.set_num_threads(1)
        told = {each.objective for each in held}
        self.held, self.taught = held, [game for game in taught if game.objective not in told]
        self.names = sorted({name for game in taught for name in game.names})
        found = load_pretrained(MODEL, dtype="float32", device="cpu")
        self.model, self.tokenizer = found.model, found.tokenizer
        self.model.config.max_position_embeddings = POSITIONS
        self.end = self.tokenizer.eos_token_id
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01)
        self.step = 0

    def train(self, folder: Path) -> None:
        """Train until enough greedy plans are right; the folder is written last."""
        file = folder.with_suffix(".pt")
        if file.is_file():
            kept = torch.load(file)
            self.step = kept["step"]
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
            for group in self.optimizer.param_groups:
                group["lr"] = RATE * min((self.step + 1) / 50, 1.0 - self.step / STEPS)
            self.step += 1
            loss = self._loss(random.Random(self.step))
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.item())
        right = self.right()
        told = f"step {self.step}: loss {np.mean(losses):.3f}, plans right {right:.0%}"
        print(told, flush=True)
        return right >= ENOUGH

    def _loss(self, rng: random.Random) -> torch.Tensor:
        """Cross-entropy of answers of one kind; half of the games get other games' names."""
        kind, rows, wanted = rng.random(), list[list[int]](), list[list[int]]()
        for game in rng.choices(self.taught, k=BATCH):
            shown = game.renamed(rng, self.names) if rng.random() < 0.5 else game
            prompt, answer = example(shown, kind, rng)
            asked = self.tokenizer(prompt)["input_ids"]
            rows.append([*self.tokenizer(prompt + answer)["input_ids"], self.end])
            wanted.append([*([-100] * len(asked)), *rows[-1][len(asked) :]])
        longest = max(map(len, rows))
        read = torch.tensor([[*row, *([self.end] * (longest - len(row)))] for row in rows])
        next_one = torch.tensor([[*row, *([-100] * (longest - len(row)))] for row in wanted])[:, 1:]
        is_asked = next_one != -100
        with torch.autocast("cpu", torch.bfloat16):
            states = self.model.model(input_ids=read[:, :-1]).last_hidden_state[is_asked]
            logits = self.model.lm_head(states)
        return torch.nn.functional.cross_entropy(logits.float(), next_one[is_asked])

    def plans(self) -> list[str]:
        """Greedy plans of the games held out."""
        self.tokenizer.padding_side = "left"
        asked = [plan_prompt(game.objective, game.scenes[0]) for game in self.held]
        read: Any = self.tokenizer(asked, return_tensors="pt", padding=True)
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=read["input_ids"],
                attention_mask=read["attention_mask"],
                max_new_tokens=100,
                do_sample=False,
            )
        return self.tokenizer.batch_decode(
            made[:, read["input_ids"].shape[1] :], skip_special_tokens=True
        )

    def right(self) -> float:
        """Share of games held out whose walkthrough is the greedy plan."""
        pairs = zip(self.plans(), self.held, strict=True)
        return float(np.mean([text == "\n".join(game.walkthrough) for text, game in pairs]))
