"""Whole steps of texts in one call of the library; see step.h."""

import math
from collections.abc import Sequence
from ctypes import addressof, c_float
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from draftwood.native import library, structures
from draftwood.native.drafting import Costs, Drafting
from draftwood.native.drawn_trees import RULES, DrawnTrees, Rule
from draftwood.native.head_drafting import HeadDrafting


@dataclass(frozen=True, eq=False)
class NativeDraft:
    """Draft of a native step: its sources and costs, and what they learn of the pass.

    Attributes:
        costs: of forward passes, with room for the tree; None runs the root alone.
        drafting: of the request; None drafts and learns nothing, unless a head does.
        head: trained head that drafts alone, in the place of ``drafting``; it makes trees of any
            size, whatever the costs are.
        drawn: trees drawn from such a head or from a draft model, likewise.
        ranks: likeliest successors that are learnt of each node; 0 learns the path alone.
        temperature: of their probabilities.
        hidden: layers whose hidden states are handed out; layer i is the input of decoder layer i.
        others: tokens that other texts are expected to emit in the same pass.
    """

    costs: Costs | None = None
    drafting: Drafting | None = None
    ranks: int = 0
    temperature: float = 1.0
    hidden: tuple[int, ...] = ()
    others: float = 0.0
    head: HeadDrafting | None = None
    drawn: DrawnTrees | None = None

    @property
    def most(self) -> int:
        """Draft tokens."""
        return 0 if self.costs is None else len(self.costs.tokens) - 1

    @property
    def uniforms(self) -> int:
        """Most uniform numbers that a step takes."""
        return 0 if self.drawn is None else self.drawn.shape.uniforms


class NativeStep(NamedTuple):
    """Result of a native step.

    Attributes:
        tokens, parents: of the tree's nodes.
        chances: of acceptance that each had, all its ancestors included; of a drawn tree that of
            the token in the row that it was drawn from.
        proposers: of each node as bits; see ``Drafting.proposers``.
        path: nodes that are now text, the root included.
        next_token: drawn behind them.
        draws: single draws that the step made.
        uniforms: uniform numbers that it took.
        seconds: by phase.
        drafter_seconds: of drafting, in the passes of the head or of the draft model.
        undrawable: logits behind the last node of the path where they leave no token to draw, and
            so no step was made; else None.
        is_head_broken: True if the head that drafts alone said NaN, and so nothing was drafted.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    proposers: list[int]
    path: list[int]
    next_token: int
    draws: int
    uniforms: int
    seconds: dict[str, float]
    drafter_seconds: float = 0.0
    undrawable: Float[np.ndarray, " vocab"] | None = None
    is_head_broken: bool = False


class StepCaller:
    """Steps of one text.

    Args:
        key: of the request's noise.
        temperature: 0 takes the likeliest tokens.
        rule: by which nodes of drawn trees are kept.
    """

    def __init__(self, key: int, temperature: float, rule: Rule = "match") -> None:
        self.structure = structures.CStep(
            key=key,
            is_drawn=temperature > 0.0,
            temperature=temperature,
            rule=RULES.index(rule),
        )
        self.address = addressof(self.structure)
        self._alone = Costs([1.0], [math.inf])  # a root without draft tokens
        self._costs = self._alone
        self._told: Costs | None = None  # that the structure points to

    def prepare(
        self,
        draft: NativeDraft,
        root: int,
        place: int,
        max_draft_len: int,
        uniforms: Sequence[float] = (),
    ) -> None:
        """Set up the next step.

        Args:
            draft: draft of the step.
            root: the newest token.
            place: number of the next draw.
            max_draft_len: most draft tokens in a row.
            uniforms: the request's next ones, as many as a drawn tree takes.
        """
        step, costs = self.structure, draft.costs or self._alone
        self._costs = costs
        if costs is not self._told:
            self._told, step.most = costs, draft.most
            step.costs, step.slopes = costs.addresses[:2]
            step.tokens, step.parents, step.path, step.chances, step.proposers = costs.addresses[2:]
        step.drafting = None if draft.drafting is None else draft.drafting.handle
        step.head = None if draft.head is None else draft.head.handle
        step.drawn = None if draft.drawn is None else draft.drawn.handle
        self._uniforms = library.doubles(uniforms)
        step.uniforms = addressof(self._uniforms) if uniforms else None
        step.room, step.root, step.place, step.others = max_draft_len, root, place, draft.others
        step.ranks, step.temperature_of_ranks = draft.ranks, draft.temperature

    @property
    def tokens(self) -> list[int]:
        """Tokens of the nodes of the last tree."""
        return self._costs.tokens[: self.structure.nodes]

    def result(self, vocabulary: int) -> NativeStep:
        """Read what came of the step.

        Args:
            vocabulary: entries of a row of logits.
        """
        step, costs = self.structure, self._costs
        size, kept = step.nodes, step.kept
        undrawable = None
        if step.broken:
            row = (c_float * vocabulary).from_address(step.broken)
            undrawable = np.ctypeslib.as_array(row).copy()
        return NativeStep(
            costs.tokens[:size],
            costs.parents[:size],
            costs.chances[:size],
            costs.proposers[:size],
            costs.path[:kept],
            step.next_token,
            step.draws,
            step.uniforms_used,
            {
                "draft": step.draft_seconds,
                "target": step.target_seconds,
                "verify": step.verify_seconds,
            },
            step.drafter_seconds,
            undrawable,
            bool(step.is_head_broken),
        )
