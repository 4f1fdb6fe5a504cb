"""Predict which drafts pay on a machine, with how large a tree, and by how much.

Trees come from the dynamic programme of Sequoia (Chen et al. 2024, arXiv:2402.12374), passes from
``Machine``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Literal

from draftwood.costs.budget import Budget
from draftwood.shapes.best_tree import plan as best_tree
from draftwood.validation import positive
from draftwood_bench.machine import Machine
from draftwood_bench.sizes import ModelSize, size_for

Passes = Literal["none", "once", "by level"]
Form = Literal["chain", "tree"]
Path = tuple[int, ...]
RANKS = 8  # children of a node with an acceptance of their own
MAX_DRAFT_TOKENS, MAX_DEPTH = 64, 8


@dataclass(frozen=True)
class DraftSource:
    """Source of draft tokens.

    Attributes:
        acceptance: probability of each rank of child to be the accepted one, its parent reached.
        size: of the network that drafts; None for tables and copies.
        passes: how often it runs in a step: never, once for all levels, or once for each.

    Raises:
        ValueError: for probabilities that sum to more than 1 or are of too many ranks, and passes
            without a network.
    """

    name: str
    acceptance: tuple[float, ...]
    size: ModelSize | None = None
    passes: Passes = "none"

    def __post_init__(self) -> None:
        ranks = self.acceptance
        if len(ranks) > RANKS:
            raise ValueError(
                f"{self.name} has {len(ranks)} ranks, and {RANKS} count; leave the others out"
            )
        if not ranks or not all(map(isfinite, ranks)) or min(ranks) < 0 or sum(ranks) > 1 + 1e-9:
            raise ValueError(
                f"the acceptance of {self.name} must be probabilities by rank that sum to at most"
                f" 1, got {ranks}"
            )
        if (self.size is None) != (self.passes == "none"):
            raise ValueError(f"{self.name} drafts with a network exactly where it makes passes")


@dataclass(frozen=True)
class Traffic:
    """Load of the target: texts that share a pass, and their context.

    Attributes:
        texts: that share each pass.
        context: tokens before the draft in each.
    """

    texts: int = 1
    context: int = 512

    def __post_init__(self) -> None:
        positive("texts", (self.texts,))
        if self.context < 0:
            raise ValueError(f"context must be at least 0 tokens, got {self.context}")


@dataclass(frozen=True)
class Plan:
    """One way to decode, and its expected speed.

    Attributes:
        source: of the draft tokens; None for plain decoding.
        widths: draft tokens by level.
        tokens: expected per pass and text, the block efficiency.
        seconds: of a step, drafting included.
        speed_up: over plain decoding under the same traffic.
        tokens_per_second: of all texts together.
    """

    source: str | None
    form: Form | None
    widths: tuple[int, ...]
    tokens: float
    seconds: float
    speed_up: float
    tokens_per_second: float

    @property
    def draft_tokens(self) -> int:
        return sum(self.widths)

    def as_json(self) -> dict[str, object]:
        return {
            "source": self.source,
            "form": self.form,
            "draft_tokens": self.draft_tokens,
            "widths": list(self.widths),
            "block_efficiency": round(self.tokens, 4),
            "seconds_per_step": self.seconds,
            "speed_up": round(self.speed_up, 4),
            "tokens_per_second": round(self.tokens_per_second, 3),
        }


def acceptance_by_rank(first: float) -> tuple[float, ...]:
    """Extrapolate acceptance by rank from the first rank's: it falls with the square of the rank,
    close to Sequoia's measurements, and sums to 1 at most.

    Raises:
        ValueError: for a probability outside 0..1.
    """
    if not 0 <= first <= 1:
        raise ValueError(f"an acceptance is a probability from 0 to 1, got {first:g}")
    scale = min(first, 1.5 * (1 - first))
    return (first, *(scale / rank**2 for rank in range(2, RANKS + 1)))


def acceptance_for(
    tokens: float, draft_tokens: int, depth: int, form: Form = "tree"
) -> tuple[float, ...]:
    """Find the acceptance by rank for which the best tree of this size emits ``tokens`` tokens a
    pass.

    Raises:
        ValueError: if no acceptance yields that many tokens.
    """
    positive("draft tokens and depth", (draft_tokens, depth))
    most = 1 + min(depth, draft_tokens)
    if not 1 < tokens < most:
        raise ValueError(
            f"{draft_tokens} draft tokens on {depth} levels emit between 1 and {most} tokens a"
            f" pass, not {tokens:g}"
        )
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        ranks = acceptance_by_rank(middle)[: 1 if form == "chain" else RANKS]
        reached = expected(ranks, best_tree(ranks, draft_tokens, depth))
        low, high = (low, middle) if reached > tokens else (middle, high)
    return acceptance_by_rank((low + high) / 2)


def expected(acceptance: Sequence[float], paths: Sequence[Path]) -> float:
    """Tokens a pass over a tree of these rank paths emits on average."""
    return 1.0 + sum(prod(acceptance[rank] for rank in path) for path in paths)


def widths_of(paths: Sequence[Path]) -> tuple[int, ...]:
    """Nodes by level of a tree of rank paths."""
    deepest = max(map(len, paths), default=0)
    return tuple(sum(len(path) == level for path in paths) for level in range(1, deepest + 1))


@dataclass(frozen=True)
class Planner:
    """Prices of ways to decode one model on one machine under one kind of traffic."""

    machine: Machine
    size: ModelSize
    traffic: Traffic = Traffic()

    def plain(self) -> Plan:
        return self.price(None, 1.0, ())

    def price(
        self, source: DraftSource | None, tokens: float, widths: Sequence[int], form: Form = "tree"
    ) -> Plan:
        """Price a tree of these widths that emits so many tokens per pass."""
        once = self._target(1, tree=False)
        seconds = once
        if source is not None and widths:
            seconds = self._target(1 + sum(widths)) + self._drafting(source, widths)
        return Plan(
            source and source.name,
            form if source else None,
            tuple(widths),
            tokens,
            seconds,
            tokens * once / seconds,
            self.traffic.texts * tokens / seconds,
        )

    def best(
        self,
        source: DraftSource,
        form: Form,
        draft_tokens: int = MAX_DRAFT_TOKENS,
        depth: int = MAX_DEPTH,
    ) -> Plan:
        """The chain or tree of a source that emits most tokens a second."""
        ranks = source.acceptance[: 1 if form == "chain" else RANKS]
        budget = min(draft_tokens, depth) if form == "chain" else draft_tokens
        once = 0.0 if source.size is None else self._draft_pass(source.size, self.traffic.texts)
        level = once if source.passes == "by level" else 0.0
        step = Budget.per_step + once - level
        costs = [
            step + self._target(nodes) + (nodes - 1) * self.traffic.texts * Budget.per_draft_token
            for nodes in range(1, budget + 2)
        ]
        paths = best_tree(ranks, budget, depth, level, costs)
        return self.price(source, expected(ranks, paths), widths_of(paths), form)

    def choices(
        self,
        sources: Sequence[DraftSource],
        draft_tokens: int = MAX_DRAFT_TOKENS,
        depth: int = MAX_DEPTH,
    ) -> list[Plan]:
        """Price plain decoding, and each source's best chain and tree; the fastest first."""
        found = [self.plain()]
        for source in sources:
            for form in ("chain", "tree"):
                found.append(self.best(source, form, draft_tokens, depth))
        return sorted(found, key=lambda choice: -choice.tokens_per_second)

    def _target(self, rows: int, tree: bool = True) -> float:
        """Seconds of a pass over so many rows of every text."""
        texts = self.traffic.texts
        return self.machine.seconds(
            self.size, texts * rows, texts=texts, context=self.traffic.context, tree=tree
        )

    def _drafting(self, source: DraftSource, widths: Sequence[int]) -> float:
        """Seconds that drafting such a tree for every text takes."""
        texts = self.traffic.texts
        host = Budget.per_step + texts * sum(widths) * Budget.per_draft_token
        if source.size is None:
            return host
        # each level runs the nodes above it, the first one the root
        rows = (1, *widths[:-1]) if source.passes == "by level" else (1,)
        return host + sum(self._draft_pass(source.size, texts * count) for count in rows)

    def _draft_pass(self, size: ModelSize, rows: int) -> float:
        return self.machine.seconds(
            size, rows, texts=self.traffic.texts, context=self.traffic.context
        )


USUAL = {"copying": 0.472, "head": 0.659, "model": 0.578}
"""Acceptance of the first rank as Vicuna-7B has it on Spec-Bench: Token Recycling emits 2.73 tokens
a pass with 80 draft tokens on 6 levels, an EAGLE head 3.61 with 25 on 5, a draft model 2.28 with a
chain of 5.
"""


def draft_source(
    name: str,
    acceptance: tuple[float, ...] | None,
    size: ModelSize,
    draft: ModelSize | None = None,
) -> DraftSource:
    """One of the usual sources for a target of this size.

    Args:
        name: ``copying`` (tables and copies, no network), ``head`` (trained on the target, one
            layer) or ``model``, a smaller one.
        acceptance: by rank; None takes the usual one.
        draft: the network of a draft model; None takes one of a hundredth of the target's size.

    Raises:
        ValueError: for other names, and values that are no probabilities.
    """
    if name not in USUAL:
        raise ValueError(f"source {name!r} is not known; take one of {', '.join(USUAL)}")
    ranks = acceptance_by_rank(USUAL[name]) if acceptance is None else acceptance
    if name == "copying":
        return DraftSource(name, ranks)
    network = head_of(size) if name == "head" else draft or draft_model_of(size)
    return DraftSource(name, ranks, network, "by level")


def draft_model_of(size: ModelSize) -> ModelSize:
    """A model of a hundredth of the target's parameters, with an eighth of its layers."""
    return size_for(0.01 * size.parameters, size.bits, max(1, size.layers // 8))


def head_of(size: ModelSize) -> ModelSize:
    """A trained head: one layer of the target, and an output head of about half a layer."""
    share = 1 / size.layers
    return ModelSize(
        1.5 * size.parameters * share,
        size.bits,
        1,
        size.cache_bytes * share,
        size.attention * share,
    )
