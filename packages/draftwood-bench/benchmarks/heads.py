"""Milliseconds of a trained head per level, and of the target's pass with its states read.

    python -m benchmarks.heads --rounds 60

Everything alternates in one process, each head behind a pass of the target, whose weights evict
the head's from the caches. Prints the median and the lower quartile: of the first level with two
rows of the text, of further levels of one and four rows, in C++ and in PyTorch; of passes over five
nodes without and with the states that a head reads, behind each head and behind nothing. PyTorch's
threads spin for a while behind its operations.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch

import draftwood
from draftwood.drafters import Eagle, Lm
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.heads.folder import load
from draftwood.heads.places import shipped_folders
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.tree import DraftTree

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


class Bench:
    """A target and its heads on one text."""

    def __init__(self, prompt: int) -> None:
        self.target = draftwood.load(TARGET, method="plain").model
        self.session = self.target.start()
        self.times: dict[str, list[float]] = {}
        self.drafts: dict[str, Any] = {}
        tokens = [100 + number % 400 for number in range(prompt)]
        layers = tuple(range(self.target.layers + 1))
        output = self.session.extend(tokens, keep="last", hidden=layers)
        told = VerifiedTree(DraftTree.chain(tokens), range(prompt), output)
        for name, (place, kind) in HEADS.items():
            if place in shipped_folders():
                drafter = kind(load(shipped_folders()[place]), self.target, Widths((1,)))
                for road in ("C++", "PyTorch"):
                    self.drafts[f"{name}, {road}"] = self._draft(drafter, road, told)

    def _draft(self, drafter: HeadDrafter, road: str, told: VerifiedTree) -> Any:
        if road == "PyTorch":
            object.__setattr__(drafter, "native", None)
        draft = drafter.start(DraftRequest(Sampling(), Rng(0), self.session))
        draft.update(told)
        return draft

    def round(self) -> None:
        """Time each thing once."""
        for name, draft in self.drafts.items():
            for hidden in (draft.reads.hidden, ()):
                output = self.session.forward(PASS, hidden=draft.reads.hidden)
                self.session.commit([])
                draft.update(VerifiedTree(PASS, [0, 1], output))
                self._levels(name, draft)
                self._pass(hidden, name)
        hidden = next(iter(self.drafts.values())).reads.hidden
        for states in ((), hidden[-1:], hidden):
            self._pass((), "settle")
            time.sleep(0.02)  # until PyTorch's threads sleep
            self._pass(states, "alone")

    def _levels(self, name: str, draft: Any) -> None:
        for level, (tree, first) in LEVELS.items():
            self._timed(f"{name}: {level}", lambda: draft.text.level(tree, first))  # noqa: B023
            if first:
                draft.text.drop()

    def _pass(self, hidden: tuple[int, ...], behind: str) -> None:
        name = f"pass behind {behind}, {len(hidden)} states"
        self._timed(name, lambda: self.session.forward(PASS, hidden=hidden))
        self.session.commit([])

    def _timed(self, name: str, act: Callable[[], object]) -> None:
        since = time.perf_counter()
        act()
        self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - since))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--prompt", type=int, default=128, help="tokens before the tree")
    given = parser.parse_args()
    bench = Bench(given.prompt)
    with torch.no_grad():
        for _ in range(given.rounds + 3):
            bench.round()
    for name, all_times in bench.times.items():
        times = all_times[3:]
        print(f"{name:40} {median(times):6.2f} ms, lower quartile {quantiles(times)[0]:6.2f}")


if __name__ == "__main__":
    main()
