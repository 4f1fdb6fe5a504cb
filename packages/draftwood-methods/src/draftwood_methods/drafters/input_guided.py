"""Draft a copy of the prompt, from where the answer stands in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive


@dataclass(frozen=True)
class InputGuided(Drafter):
    """Go on copying the source, and find the place again where the answer left it.

    The inference half of shallow aggressive decoding (Sun et al. 2021, arXiv:2106.04970), for
    answers that repeat a text with few changes. As long as the answer follows the source, the place
    moves along. Where it does not, the answer's newest tokens are looked for in the source, the
    longest match first, and of equal ones the first from the place on.

    Differs from the paper: the source is the prompt, tokens are copied a limited number at a time,
    and there is no shallow decoder.

    Args:
        length: most tokens to copy.
        longest: most tokens to match.

    Example:
        The source is 1 2 3 4, and the answer begins with 1. The copy goes on from there; the target
        changes its end.

        >>> one_step(InputGuided(length=3), writing([1, 2, 3, 5]), [1, 2, 3, 4, 1])
        OneStep(drafted=[[2, 3, 4]], accepted=[2, 3], then=5)
    """

    name: ClassVar[str] = "input-guided"
    length: int = 12
    longest: int = 4

    def __post_init__(self) -> None:
        positive("length and longest", [self.length, self.longest])

    def start(self, request: DraftRequest) -> DraftSession:
        return _InputGuidedSession(self)


class _InputGuidedSession(DraftSession):
    def __init__(self, config: InputGuided) -> None:
        self.config = config
        self.source: list[int] = []
        self.drafts = False  # before that comes the prompt
        self.ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> places right after it
        self.answer: list[int] = []  # its newest tokens
        self.place = 0  # in the source, of what would follow the answer
        self.follows = False  # whether the answer's newest token was copied

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts = True
        place = self._after(root)
        if place is None:
            return DraftTree.of([root], [-1])
        end = place + min(self.config.length, context.max_draft_len)
        return DraftTree.chain([root, *self.source[place:end]])

    def _after(self, token: int) -> int | None:
        """The place in the source after the answer and one token more; None where there is none."""
        source = self.source
        if self.follows and self.place < len(source) and source[self.place] == token:
            return self.place + 1
        newest = [*self.answer, token][-self.config.longest :]
        for start in range(len(newest)):
            found = self.ends.get(tuple(newest[start:]), [])
            if found:
                return next((place for place in found if place >= self.place), found[-1])
        return None

    def update(self, verified: VerifiedTree) -> None:
        if not self.drafts:  # the prompt comes in parts
            self._index(verified.tokens)
            return
        for token in verified.tokens:
            place = self._after(token)
            self.follows = place is not None
            self.place = self.place if place is None else place
            self.answer = [*self.answer, token][-self.config.longest :]

    def _index(self, more: Sequence[int]) -> None:
        known = len(self.source)
        self.source += more
        for end in range(known + 1, len(self.source) + 1):
            for length in range(1, min(self.config.longest, end) + 1):
                self.ends.setdefault(tuple(self.source[end - length : end]), []).append(end)
