"""Draft n-grams that the target itself made while it wrote, by Jacobi iteration in a window."""

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive


@dataclass(frozen=True)
class Lookahead(Drafter):
    """N-grams gathered from a window of parallel iterations, checked beside that window.

    Lookahead decoding (Fu et al. 2024, arXiv:2402.02057). Every pass runs a window of ``window``
    places and ``ngram`` - 1 iterations, from which each place gives one more n-gram, and at most
    ``candidates`` n-grams that begin with the newest token. Both are branches of one tree: the
    window's first row is a chain below the root, and the later iterations of a place hang below the
    place. What happens to be right in the window is kept too.

    Differs from the paper: the window begins with the prompt's last tokens instead of random ones,
    and n-grams that begin alike share nodes.

    Args:
        window: places ahead (W).
        ngram: tokens of an n-gram (N), at least 2.
        candidates: n-grams checked in one pass (G), and kept for each first token.

    Raises:
        ValueError: for numbers too small.

    Example:
        The window begins with 1 2, the last tokens before 1. The first pass says 2 after that 1 and
        1 after that 2: the n-grams 1 2 and 2 1. The second one checks 2 1 below its root 2, beside
        the window, which is now 2 1.

        >>> drafter = Lookahead(window=2, ngram=2)
        >>> one_step(drafter, writing([1, 2]), [1, 2, 1, 2, 1], steps=2)
        OneStep(drafted=[[2, 1], [1]], accepted=[1], then=2)
    """

    name: ClassVar[str] = "lookahead"
    window: int = 5
    ngram: int = 3
    candidates: int = 5

    def __post_init__(self) -> None:
        positive("window and candidates", [self.window, self.candidates])
        if self.ngram < 2:
            raise ValueError(f"ngram must be at least 2, got {self.ngram}")

    def start(self, request: DraftRequest) -> DraftSession:
        return _LookaheadSession(self)


class _LookaheadSession(DraftSession):
    def __init__(self, config: Lookahead) -> None:
        self.config = config
        # by place, the tokens of its iterations, oldest first
        self.window: list[list[int]] = []
        self.newest: list[int] = []  # tokens of the prompt
        self.pool: dict[int, deque[tuple[int, ...]]] = {}
        self.places: list[list[int]] = []  # nodes of the window in the last tree
        self.drafts = False  # before that comes the prompt

    @property
    def reads(self) -> Reads:
        return Reads(logits=self.drafts)

    @property
    def needs_prompt(self) -> bool:
        return False

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts = True
        tokens, parents, self.places = [root], [-1], []
        deep = self.config.window + self.config.ngram - 2  # of the window's last node
        if self.window and context.max_draft_len >= deep:
            above = 0
            for place in self.window:
                nodes: list[int] = []
                for token in place:
                    nodes.append(len(tokens))
                    tokens.append(token)
                    parents.append(nodes[-2] if len(nodes) > 1 else above)
                above = nodes[0]
                self.places.append(nodes)
        self._add_candidates(tokens, parents, context.max_draft_len)
        return DraftTree.of(tokens, parents)

    def _add_candidates(self, tokens: list[int], parents: list[int], max_draft_len: int) -> None:
        """The n-grams that begin with the root, the newest first."""
        children: dict[tuple[int, int], int] = {}
        for rest in reversed(self.pool.get(tokens[0], ())):
            node = 0
            for token in rest[:max_draft_len]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = children[node, token]

    def update(self, verified: VerifiedTree) -> None:
        if not self.drafts:  # the prompt comes in parts
            self._begin(verified.tokens)
            return
        last, tree = [nodes[-1] for nodes in self.places], verified.tree
        newest = [place[-1] for place in self.window]
        if not last or [tree.token_list[node] for node in last if node < len(tree)] != newest:
            return  # there was no room for the window, or a constraint left something out
        mended = verified.logits[last].argmax(-1).tolist()
        for place, token in zip(self.window, mended, strict=True):
            self._keep((*place, token))
            place.append(token)
            del place[0]

    def _begin(self, more: list[int]) -> None:
        """Fill the window with the last tokens of the prompt so far."""
        width, rows = self.config.window, self.config.ngram - 1
        self.newest = [*self.newest, *more][-width:]
        self.window = [[token] * rows for token in (self.newest * width)[:width]]

    def _keep(self, ngram: tuple[int, ...]) -> None:
        known = self.pool.setdefault(ngram[0], deque(maxlen=self.config.candidates))
        if ngram[1:] in known:
            known.remove(ngram[1:])
        known.append(ngram[1:])
