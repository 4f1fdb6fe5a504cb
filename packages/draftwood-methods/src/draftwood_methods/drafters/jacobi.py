"""Draft what the last pass said below the token that it did not keep."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive


@dataclass(frozen=True)
class Jacobi(Drafter):
    """A chain that every pass mends: each token becomes the likeliest one after the token before.

    Parallel decoding by Jacobi iteration (Santilli et al. 2023, arXiv:2305.10427): the fixed point
    is the greedy text, and what is right at the chain's beginning is kept.

    Differs from the paper: any text that matches the target's own draws is kept, drawn ones too,
    and the chain's end is filled up with its last token.

    Args:
        length: of the chain.

    Example:
        The first chain below 5 is 5 5 5. The pass says 6 after each of them, so that the next chain
        is 6 6 6; this target repeats 6 from there on.

        >>> one_step(Jacobi(3), writing([6, 1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5], steps=2)
        OneStep(drafted=[[6, 6, 6]], accepted=[6, 6, 6], then=6)
    """

    name: ClassVar[str] = "jacobi"
    length: int = 5

    def __post_init__(self) -> None:
        positive("length", [self.length])

    def start(self, request: DraftRequest) -> DraftSession:
        return _JacobiSession(self.length)


class _JacobiSession(DraftSession):
    def __init__(self, length: int) -> None:
        self.length = length
        self.chain: list[int] = []  # what may follow the next root
        self.drafts = False  # before that comes the prompt

    @property
    def reads(self) -> Reads:
        return Reads(logits=self.drafts)

    @property
    def needs_prompt(self) -> bool:
        return False

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts = True
        chain = [root, *self.chain]
        chain += [chain[-1]] * (self.length + 1 - len(chain))
        return DraftTree.chain(chain[: 1 + min(self.length, context.max_draft_len)])

    def update(self, verified: VerifiedTree) -> None:
        last = verified.path[-1]
        below = range(last + 1, len(verified.tree))
        if verified.output is None or len(below) == 0:
            self.chain = []
            return
        # the root to come takes the place of the first token below
        self.chain = verified.logits[last + 1 :].argmax(-1).tolist()
