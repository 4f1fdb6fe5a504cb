"""Checks of masked diffusion that need no model: texts of lists are known exactly."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import numpy as np

from draftwood.engine import Options
from draftwood.sampling import Sampling
from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult
from draftwood.testing.statistics import chi_square
from draftwood_diffusion.block_state import Advance, BlockState, Seen
from draftwood_diffusion.lists.list_model import list_model
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.lists.price import price, unwritten
from draftwood_diffusion.lookahead import StepsAhead
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.loop import WrittenText, written
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.stepping import Stepping
from draftwood_diffusion.unmasking import Unmasking, parse

ITEMS, TEXTS, SEEDS = 4, 300, 4
START = ITEMS + 1  # the token of the prompt
AHEAD = (FreeDave(2), FreeDave(4), FreeDave(8), FreeDave(8, 3))
LOOKED_AHEAD = ("one-by-one", "random", "threshold,tau=0.7", "ccd", "random+edit,above=0.5")
ENDS = (frozenset[int](), frozenset({0}))
"""End tokens of texts that are compared: none, and a token that stands in them."""


@dataclass(frozen=True)
class Stale(FreeDave):
    """A wrong lookahead: drafts are compared with what the first state's pass said of them."""

    def agreeing(
        self, states: Sequence[BlockState], seen: Sequence[Seen], advance: Advance
    ) -> list[BlockState]:
        return super().agreeing(states, [seen[0]] * len(seen), advance)


@dataclass(frozen=True)
class PastEnds(FreeDave):
    """A wrong lookahead: drafts go on where the text is over."""

    def states(self, following: BlockState, seen: Seen, advance: Advance) -> list[BlockState]:
        assert isinstance(advance, Stepping)
        return super().states(following, seen, replace(advance, ends=frozenset()))


def shuffles() -> ListedTexts:
    """Every order of some items behind a prompt; earlier orders are likelier."""
    orders = [(START, *each) for each in permutations(range(ITEMS))]
    return ListedTexts.of(orders, [1.0 / (place + 8) for place in range(len(orders))], START + 2)


def mixtures(places: int = 5, tokens: int = 3) -> ListedTexts:
    """Every text of so many places, with probabilities of chance: places know of each other."""
    texts = [(START, *each) for each in product(range(tokens), repeat=places)]
    weights = np.random.default_rng(0).exponential(size=len(texts)) ** 2
    return ListedTexts.of(texts, weights.tolist(), START + 2)


def replacements(items: int) -> ListedTexts:
    """Every list in which one of so many items is another one."""
    own = range(items)
    texts = [[items + 1, *(items if i == j else i for i in own)] for j in own]
    return ListedTexts.of(texts)


def models(listed: ListedTexts) -> Iterator[MaskedModel]:
    """A list as models of every kind and block length."""
    for length in range(1, listed.places + 1):
        for kind in ((False, False), (True, False), (False, True), (True, True)):
            yield list_model(listed, length, *kind)


def text_of(
    masked: MaskedModel,
    method: Unmasking,
    temperature: float,
    seed: int,
    ends: frozenset[int] = frozenset(),
) -> WrittenText:
    """A text behind the prompt of a list."""
    length = (masked.model.context_length or 0) - 1
    options = Options(Sampling(temperature=temperature), length, ends, seed)
    return written(masked, [START], options, method)


@dataclass(frozen=True)
class Comparison:
    """Texts with a lookahead beside those without.

    Attributes:
        texts: in all.
        changed: texts, or orders of fixing, that differ.
        passes: without the lookahead.
        saved: of these.
    """

    texts: int = 0
    changed: int = 0
    passes: int = 0
    saved: int = 0

    def __add__(self, other: "Comparison") -> "Comparison":
        return Comparison(
            self.texts + other.texts,
            self.changed + other.changed,
            self.passes + other.passes,
            self.saved + other.saved,
        )

    @property
    def told(self) -> str:
        """As a check of a lookahead tells it."""
        return (
            f"{self.changed} of {self.texts} texts differ, {self.saved} of {self.passes} passes"
            " saved"
        )

    @property
    def told_of_control(self) -> str:
        """As a check of a wrong lookahead tells it."""
        return f"caught in {self.changed} of {self.texts} texts" if self.changed else "not caught"


def compared(base: str, lookahead: StepsAhead) -> Comparison:
    """Write texts of every kind of model and block length with a lookahead and without."""
    usual, found = parse(base), Comparison()
    looked = replace(usual, lookahead=lookahead)
    for masked, seed, ends in product(models(mixtures()), range(SEEDS), ENDS):
        one, other = (
            text_of(masked, method, min(seed, 1), seed, ends) for method in (usual, looked)
        )
        differs = places(one) != places(other) or one.tokens != other.tokens
        found += Comparison(1, int(differs), one.runs, one.runs - other.runs)
    return found


def places(text: WrittenText) -> list[tuple[int, int]]:
    """Places and tokens in the order in which they were fixed."""
    return [(each.place, each.token) for each in text.fixings]


def _check_lookahead(base: str) -> CheckResult:
    found = sum((compared(base, each) for each in AHEAD), Comparison())
    return CheckResult("identity", f"freedave over {base}", not found.changed, found.told)


def _check_wrong(name: str, lookahead: StepsAhead) -> CheckResult:
    found = compared("random+edit,above=0.5", lookahead)
    return CheckResult("control", name, found.changed > 0, found.told_of_control)


def order_p_value(method: str) -> float:
    """P-value of a method's texts under the list that the model holds."""
    listed = shuffles()
    chances = {
        tuple(text[1:]): p for text, p in zip(listed.texts.tolist(), listed.chances, strict=True)
    }
    masked, parsed = list_model(listed, ITEMS, bidirectional=True), parse(method)
    found = Counter(tuple(text_of(masked, parsed, 1.0, seed).tokens) for seed in range(TEXTS))
    return chi_square(found, chances)


def _check_texts(method: str) -> CheckResult:
    found = order_p_value(method)
    told = "chi-square of whole texts"
    return CheckResult("law", f"{method}, a list", found >= SIGNIFICANCE, told, found)


def _check_two_a_pass() -> CheckResult:
    found = order_p_value("top-k,k=2")
    told = "caught, as it must be" if found < SIGNIFICANCE else "not caught"
    return CheckResult("control", TWO, found < SIGNIFICANCE, told, found)


def _check_closed_forms() -> CheckResult:
    """Compare enumerated prices with the formulas of ParallelBench (2025, arXiv:2510.04767)."""
    worst = 0.0
    for n in (2, 3, 4, 5):
        once = parse(f"top-k,k={n}")
        orders = ListedTexts.of([(n, *each) for each in permutations(range(n))])
        shuffled = price(unwritten(orders, (n,), once, n)).bits
        replaced = price(unwritten(replacements(n), (n + 1,), once, n)).bits
        worst = max(worst, abs(shuffled - (n * math.log2(n) - math.log2(math.factorial(n)))))
        worst = max(worst, abs(replaced - (n - 1) * math.log2(n / (n - 1))))
    told = f"largest difference {worst:.1e} bits"
    return CheckResult("law", CLOSED, worst < 1e-9, told)


WRONG = {
    "freedave, compared with a stale pass": Stale(4),
    "freedave, branches compared with a stale pass": Stale(8, 3),
    "freedave, past an end token": PastEnds(4),
}
TWO = "two tokens a pass, a list"
CLOSED = "prices in bits, closed forms"
CHECKS: dict[str, Check] = {
    **{f"freedave over {each}": partial(_check_lookahead, each) for each in LOOKED_AHEAD},
    **{name: partial(_check_wrong, name, each) for name, each in WRONG.items()},
    **{f"{each}, a list": partial(_check_texts, each) for each in ("one-by-one", "random")},
    TWO: _check_two_a_pass,
    CLOSED: _check_closed_forms,
}
"""By what each checks."""
