"""Small recipes on lists: a decoder of two layers learns one from nothing, in minutes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder, random_decoder
from draftwood_diffusion.training.insertion import Insertion
from draftwood_diffusion.training.order_agnostic import OrderAgnostic, corrupted
from draftwood_train.checkpoints import NAME, Checkpoint, copied
from draftwood_train.places import require_resumed

NAMES, BEGIN, END = 10, 10, 11
"""Items of which lists are made, and the two tokens behind them."""
JUDGED, JUDGED_SEED = 200, 10**6
TIMES = 3
HIDDEN, SAVED_EACH = 48, 100
ERRORS = 0.2
"""Share of places that hold a token of chance while the order-agnostic layer learns."""
ListTask = Literal["copy", "reverse", "sort"]


@dataclass(frozen=True)
class ListSettings:
    """A recipe, its task, and how long it is learnt.

    Attributes:
        recipe: ``insertion`` or ``order-agnostic``.
        task: what becomes of a list, for insertion.
        items: of a list.
        steps, rows: of the training, and lists of a step.
        rate: of learning, at first; it falls in the second half.
        seed: of weights and lists.
    """

    recipe: str
    task: ListTask = "sort"
    items: int = 5
    steps: int = 300
    rows: int = 64
    rate: float = 3e-3
    seed: int = 0

    def lists(
        self, count: int, seed: int
    ) -> tuple[Int[Tensor, "lists items"], Int[Tensor, "lists items"]]:
        """Lists of different items, and what becomes of them."""
        chance = torch.Generator().manual_seed(seed)
        given = torch.rand(count, NAMES, generator=chance).argsort(1)[:, : self.items]
        made = {"copy": given, "reverse": given.flip(1), "sort": given.sort(1).values}
        return given, made[self.task]


class ListTraining:
    """A training that goes on where it was stopped.

    Args:
        settings: of it.
        folder: of its checkpoint.
        resume: whether to go on after the checkpoint in the folder.

    Raises:
        ValueError: for a training that was begun already, and a checkpoint of other settings.
        FileNotFoundError: for none to go on after.
    """

    def __init__(self, settings: ListSettings, folder: Path, resume: bool = False) -> None:
        require_resumed(folder, (folder / NAME).exists(), resume)
        self.settings, self.folder, self.decoder = settings, folder, _decoder(settings.seed)
        self.optimiser = torch.optim.AdamW(self.decoder.parameters(), lr=settings.rate)
        self.state = Checkpoint(asdict(settings), {}, [], {})
        if resume:
            self.state = Checkpoint.read(folder)
            self.state.require(asdict(settings), {})
            self.decoder.load_state_dict(self.state.head)
            self.optimiser.load_state_dict(self.state.optimisers[0])

    def run(self, told: Callable[[int], None] = lambda step: None) -> dict[str, float]:
        """Train to the end, and judge; ``told`` hears each step's number."""
        while self.state.step < self.settings.steps:
            self.step()
            told(self.state.step)
            if self.state.step % SAVED_EACH == 0:
                self.save()
        self.save()
        return self.judged()

    def save(self) -> None:
        """Write the checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state.head = copied(self.decoder)
        self.state.optimisers = [self.optimiser.state_dict()]
        self.state.write(self.folder)

    def step(self) -> None:
        """One step; its lists follow from its number."""
        settings, step = self.settings, self.state.step
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate * min(1.0, 2 - 2 * step / settings.steps)
        seed = settings.seed * JUDGED_SEED + step + 1
        chance = torch.Generator().manual_seed(seed)
        given, made = settings.lists(settings.rows, seed)
        if settings.recipe == "insertion":
            count = step % (settings.items + 1)
            loss = Insertion(BEGIN, END).loss(self.decoder, given, made, count, chance)
        else:
            texts = _said_thrice(given)
            loss = self._layer().loss(texts, corrupted(texts, ERRORS, NAMES, chance))
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimiser.step()
        self.state.step += 1

    def judged(self) -> dict[str, float]:
        """Figures on lists of their own: of insertion right lists and passes, else mended errors
        with rows that look back, and without.
        """
        given, made = self.settings.lists(JUDGED, (self.settings.seed + 1) * JUDGED_SEED)
        if self.settings.recipe == "insertion":
            return self._written(given, made)
        texts, rows = _said_thrice(given), torch.arange(JUDGED)
        places = rows % self.settings.items * (TIMES + 1)  # where an item is said first
        broken = texts.clone()
        broken[rows, places] = (broken[rows, places] + 3) % NAMES
        mended, control = (
            (self._layer().corrected(broken, looks_back=back) == texts)[rows, places].float().mean()
            for back in (True, False)
        )
        return {"mended": float(mended), "mended_without_looking_back": float(control)}

    def _written(self, given: Tensor, made: Tensor) -> dict[str, float]:
        items, insertion = self.settings.items, Insertion(BEGIN, END)
        texts = [insertion.written(self.decoder, each, 2 * items, items) for each in given]
        right = sum(text == each.tolist() for (text, _), each in zip(texts, made, strict=True))
        passes = sum(passes for _, passes in texts)
        return {"right": right / len(texts), "passes": passes / len(texts)}

    def _layer(self) -> OrderAgnostic:
        return OrderAgnostic(self.decoder)


def _said_thrice(given: Tensor) -> Int[Tensor, "lists places"]:
    """Lists that say each item three times, and a token behind."""
    items = given[..., None].expand(-1, -1, TIMES)
    behind = torch.full((*given.shape, 1), BEGIN)
    return torch.cat([items, behind], dim=2).flatten(1)


def _decoder(seed: int) -> StreamDecoder:
    sizes = DecoderSizes(END + 1, HIDDEN, 2 * HIDDEN, 2, 4, 4, 12, 1e-5, 1e4, True, True, True)
    return random_decoder(sizes, HIDDEN**-0.5, seed)
