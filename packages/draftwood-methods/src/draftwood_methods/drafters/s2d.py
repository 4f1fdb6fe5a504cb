"""Draft with the smallest of several nested LMs that is sure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.tree import DraftTree
from draftwood_methods.gated_drafts import GatedDrafter, GatedDrafts
from draftwood_methods.heads.s2d import NestedRows, S2dConfig


@dataclass(frozen=True, eq=False)
class S2d(GatedDrafter):
    """A chain, each token of which comes from the smallest nested LM that is sure of it.

    Sorted speculative decoding (Kavehzadeh et al. 2024, arXiv:2407.01955). One draft LM serves
    targets and budgets of several sizes: its first layers are LMs too. A token is asked of the
    smallest; where that gives its likeliest token less than ``sure``, the next one goes on from
    its state. Where even the largest is not sure, the chain ends. All of it follows from the path,
    so rejection keeps the target's distribution.

    Args:
        trained: nested draft LM, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: a ``Gated`` chain; its length is the most draft tokens.
        sure: least probability of a size's likeliest token with which the size drafts.
        least: the same for the largest size, which otherwise ends the chain.
        sizes: numbers of the sizes that may draft, from 1 on, ascending; empty for all. One
            number makes it a draft LM of that size.

    Raises:
        ValueError: where the drafter is of another kind or does not fit the target, and for
            settings that it does not have.

    Example:
        The text is 1 2 3 4 5. One layer gives 6 a probability of 0.8, which is enough; for the
        next token it says 7 with 0.3, so the second layer goes on, takes the row of 6 along, and
        says 8 with 0.7. Behind 8 both are unsure, and the chain ends. The target runs 5, 6 and 8,
        says 6 after 5 and 8 after 6, then 9: it keeps 6 8 and goes on with 9.
    """

    name: ClassVar[str] = "s2d"
    sure: float = 0.6
    least: float = 0.3
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        config = self.fitting(S2dConfig)
        if not (0.0 <= self.sure <= 1.0 and 0.0 <= self.least <= 1.0):
            raise ValueError(
                f"sure and least must be chances from 0 to 1, got {self.sure} and {self.least}"
            )
        count = len(config.exits)
        if self.sizes != tuple(sorted({*self.sizes} & {*range(1, count + 1)})):
            raise ValueError(f"sizes must ascend among 1 to {count}, got {self.sizes}")
        self.prepare()

    def start(self, request: DraftRequest) -> DraftSession:
        return _S2dSession(self, request)


class _S2dSession(GatedDrafts):
    def __init__(self, drafter: S2d, request: DraftRequest) -> None:
        self.nested = NestedText(drafter, request.sampler.for_drafting())
        super().__init__(drafter, request, self.nested)

    def goes_on(self, node: int) -> bool:
        """True if one of the sizes was sure."""
        return self.nested.is_sure


class NestedText:
    """One text of a nested LM: each row goes as deep as it takes; implements ``HeadText``.

    Attributes:
        is_sure: whether a size was sure at the newest node.
    """

    def __init__(self, drafter: S2d, sampler: Any) -> None:
        self.drafter, self.is_sure = drafter, False
        self.rows = NestedRows(drafter.placed.network)
        self.temperature = getattr(sampler, "temperature", 1.0)
        count = len(self.rows.head.config.exits)
        self.sizes = drafter.sizes or tuple(range(1, count + 1))
        self.length, self.late = 0, list[int]()  # rows of the text, and tokens that have none
        self._ahead = 0  # the root's row is there before it is text

    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Float[Tensor, "nodes dim"]],
        path: Sequence[int],
    ) -> None:
        self.late += tokens[self._ahead :]
        self._ahead = 0

    @torch.no_grad()
    def level(self, tree: DraftTree, first: int) -> Float[Tensor, "nodes draft_vocab"]:
        """Logits after a node of a chain; see ``HeadText``."""
        tokens = tree.token_list[first:]
        if first == 0:
            tokens, self.late, self._ahead = [*self.late, *tokens], [], 1
            self.length += len(tokens)
        target = self.drafter.target
        embedded = target.embeddings_and_head.embed(torch.tensor(tokens, device=str(target.device)))
        self.rows.add(torch.as_tensor(embedded))
        return self._logits()

    def drop(self) -> None:
        self.rows.keep(self.length)

    def follow(self, first: Any) -> None:
        """Run the prompt once more, which costs a small LM little."""

    def _logits(self) -> Float[Tensor, "1 draft_vocab"]:
        """Logits of the smallest size that is sure, else of the largest."""
        settings, logits = self.drafter, torch.empty(0)
        for size in self.sizes:
            logits = torch.as_tensor(settings.placed.logits(self.rows.state(size)))
            best = float((logits.float() / self.temperature).softmax(-1).max())
            self.is_sure = best >= (settings.least if size == self.sizes[-1] else settings.sure)
            if self.is_sure:
                break
        return logits
