"""A small model that learns to play TextWorld games from walkthroughs, for `plan_games`."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.text_world import Game
from draftwood_choices.search import plan_tree

END = "<end>"
VOCABULARY, WIDTH, LAYERS = 2048, 128, 3
BATCH, STEPS, EVERY, RATE = 8, 6000, 100, 1.5e-3
PROMPT = 0.2
"""Weight of a prompt's tokens, of an answer's one."""
ENOUGH = 0.5
"""Share of the games held out whose greedy plan is the walkthrough when training stops."""


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
        """Cross-entropy of answers, and for less of prompts, whose names teach to copy."""
        rows, weights = list[list[int]](), list[list[float]]()
        for prompt, answer in (self.example() for _ in range(BATCH)):
            asked = self.tokenizer(prompt)["input_ids"]
            wanted = [*self.tokenizer(answer)["input_ids"], 0]
            rows.append([*asked, *wanted])
            weights.append([*([PROMPT] * len(asked)), *([1.0] * len(wanted))])
        longest = max(map(len, rows))
        read = torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows])
        shares = torch.tensor([[*row, *([0.0] * (longest - len(row)))] for row in weights])[:, 1:]
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(input_ids=read[:, :-1]).logits
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), read[:, 1:].flatten(), reduction="none"
        )
        return (each * shares.flatten()).sum() / shares.sum()

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
