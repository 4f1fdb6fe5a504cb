"""Milliseconds of trained heads per level, and of the target's pass with its states read.

    python -m benchmarks.heads --rounds 60

Everything alternates in one process, each head behind a pass of the target, whose weights evict
the head's from the caches. Prints the median, the lower quartile and the least: of EAGLE and the
LM the first level with two rows of the text, then levels of one and of four rows; of Medusa all
four levels, which are one call; of Hydra the first level, then one and four rows of the second; of
CTC eight frames behind two rows. Medusa, Hydra and CTC have random weights, which take the same
time. At last passes over five nodes with and without states that a head reads. ``--pytorch``
measures PyTorch's form of EAGLE and LM too; its threads spin for a while behind its operations.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

import draftwood
from benchmarks.common.scripts import parser_of
from draftwood.drafters import Eagle, Lm
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.heads.ctc import CtcConfig
from draftwood.heads.folder import load
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.native_side import native_frames, native_medusa
from draftwood.heads.places import shipped_folders
from draftwood.heads.trained import TrainedHead
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.tree import DraftTree
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.medusa import MedusaHead

TARGET = "smollm2-135m"
HEADS: dict[str, tuple[str, type[Eagle] | type[Lm]]] = {
    "eagle": ("smollm2-135m-eagle", Eagle),
    "lm": ("smollm2-135m-lm", Lm),
}
PASS = DraftTree.of([5, 6, 7, 8, 9], [-1, 0, 0, 1, 3])
LEVELS = {  # a tree, and the node with which its last level begins
    "first level": (DraftTree.of([5], [-1]), 0),
    "one row": (DraftTree.of([5, 6], [-1, 0]), 1),
    "four rows": (DraftTree.of([5, 6, 7, 8, 9], [-1, 0, 0, 0, 0]), 1),
}
FRAMES = 8
WARM_UP = 3  # rounds

Timed = Callable[[str, Callable[[], object]], object]
Levels = Callable[[Timed, Mapping[int, torch.Tensor]], None]
"""Times the levels of a head on the states of a pass, by layer."""


class Bench:
    """A target and its heads on one text."""

    def __init__(self, prompt: int, pytorch: bool) -> None:
        self.target = draftwood.load(TARGET, method="plain").model
        self.session = self.target.start()
        self.times: dict[str, list[float]] = {}
        self.heads: dict[str, tuple[tuple[int, ...], Levels]] = {}
        tokens = [100 + number % 400 for number in range(prompt)]
        layers = tuple(range(self.target.layers + 1))
        output = self.session.extend(tokens, keep="last", hidden=layers)
        told = VerifiedTree(DraftTree.chain(tokens), range(prompt), output)
        for name, (place, kind) in HEADS.items():
            if place in shipped_folders():
                drafter = kind(load(shipped_folders()[place]), self.target, Widths((1,)))
                for road in ("C++", "PyTorch")[: 1 + pytorch]:
                    self._add(name, road, self._draft(drafter, road, told))
        self._add_random(load(shipped_folders()[HEADS["eagle"][0]]))

    def _draft(self, drafter: HeadDrafter, road: str, told: VerifiedTree) -> Any:
        if road == "PyTorch":
            object.__setattr__(drafter, "native", None)
        draft = drafter.start(DraftRequest(Sampling(), Rng(0), self.session))
        draft.update(told)
        return draft

    def _add(self, name: str, road: str, draft: Any) -> None:
        def levels(timed: Timed, hidden: Mapping[int, torch.Tensor]) -> None:
            del hidden  # which the output has
            draft.update(VerifiedTree(PASS, [0, 1], self.output))
            for level, (tree, first) in LEVELS.items():
                timed(f"{name}, {road}: {level}", lambda: draft.text.level(tree, first))  # noqa: B023
                if first:
                    draft.text.drop()

        self.heads[f"{name}, {road}"] = draft.reads.hidden, levels

    def _add_random(self, like: TrainedHead) -> None:
        """Heads of the other kinds, as large as one that is there."""
        last, sizes = self.target.layers, like.config.sizes
        kinds = {
            "medusa": (MedusaHead(MedusaConfig(sizes, reads=(last,))), medusa_levels),
            "hydra": (
                MedusaHead(MedusaConfig(sizes, reads=(last,), sees_drafted=True)),
                hydra_levels,
            ),
            "ctc": (CtcHead(CtcConfig(sizes, frames=FRAMES, reads=(last,))), ctc_levels),
        }
        for name, (head, levels_of) in kinds.items():
            trained = TrainedHead.with_fingerprint(head, like.draft_tokens, like.target)
            levels = levels_of(trained, self.target)
            self.heads[name] = (last,), levels

    def round(self) -> None:
        """Time each thing once."""
        for name, (layers, levels) in self.heads.items():
            for hidden in (layers, ()):
                self.output = self.session.forward(PASS, hidden=layers)
                self.session.commit([])
                levels(self._timed, self.output.hidden)
                self._pass(hidden, name)
        every = next(iter(self.heads.values()))[0]
        for states in ((), every[-1:], every):
            self._pass((), "settle")
            time.sleep(0.02)  # until PyTorch's threads sleep
            self._pass(states, "alone")

    def _pass(self, hidden: tuple[int, ...], behind: str) -> None:
        name = f"pass behind {behind}, {len(hidden)} states"
        self._timed(name, lambda: self.session.forward(PASS, hidden=hidden))
        self.session.commit([])

    def _timed(self, name: str, act: Callable[[], object]) -> None:
        since = time.perf_counter()
        act()
        self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - since))


def medusa_levels(trained: TrainedHead, target: Any) -> Levels:
    """All levels of Medusa's heads, in one call."""
    heads = native_medusa(trained, target)
    assert heads is not None
    memory, count = np.empty((4, heads.vocab_size), np.float32), range(4)

    def levels(timed: Timed, hidden: Mapping[int, torch.Tensor]) -> None:
        states = [hidden[target.layers]]
        timed("medusa: all levels", lambda: heads.logits(states, 0, count, [[]] * 4, memory))

    return levels


def hydra_levels(trained: TrainedHead, target: Any) -> Levels:
    """The first level of Hydra's heads, and rows of the second."""
    heads = native_medusa(trained, target)
    assert heads is not None
    memory = np.empty((4, heads.vocab_size), np.float32)
    rows = {"first level": [[5]], "one row": [[5, 6]], "four rows": [[5, n] for n in range(6, 10)]}

    def levels(timed: Timed, hidden: Mapping[int, torch.Tensor]) -> None:
        states = [hidden[target.layers]]
        for name, tokens in rows.items():
            given = [len(each) - 1 for each in tokens], tokens, memory
            timed(f"hydra: {name}", lambda: heads.logits(states, 0, *given))  # noqa: B023

    return levels


def ctc_levels(trained: TrainedHead, target: Any) -> Levels:
    """Frames behind two rows of the text."""
    frames = native_frames(trained, target)
    assert frames is not None
    session = frames.start()

    def levels(timed: Timed, hidden: Mapping[int, torch.Tensor]) -> None:
        states = [hidden[target.layers]]
        timed(f"ctc: {FRAMES} frames", lambda: session.probs(states, [0, 1], [6, 7]))

    return levels


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=128, help="tokens before the tree")
    parser.add_argument("--pytorch", action="store_true", help="PyTorch's form of EAGLE and LM too")
    given = parser.parse_args()
    bench = Bench(given.prompt, given.pytorch)
    with torch.no_grad():
        for _ in range(given.rounds + WARM_UP):
            bench.round()
    for name, all_times in bench.times.items():
        times = all_times[WARM_UP:]
        low = quantiles(times)[0] if len(times) > 1 else times[0]
        print(
            f"{name:40} {median(times):6.2f} ms, lower quartile {low:6.2f}, least {min(times):6.2f}"
        )


if __name__ == "__main__":
    main()
