"""Draft copies of what followed the newest tokens before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive


@dataclass(frozen=True)
class PromptLookup(Drafter):
    """Copy what followed the newest tokens where they occurred in the prompt or the answer.

    Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).

    Differs from the original: the longest match wins and of equal ones the most recent, a
    continuation may be shorter than asked for, and several continuations may be merged into a tree.

    Args:
        ngram: most tokens to match.
        length: most tokens to copy from each place.
        branches: places to copy from; 1 drafts a chain.

    Example:
        1 2 stood in the text before, and was followed by 3 1. The target keeps 3, and goes on with
        4.

        >>> one_step(PromptLookup(length=2), writing([1, 2, 3, 4]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 1]], accepted=[3], then=4)
    """

    name: ClassVar[str] = "prompt-lookup"
    ngram: int = 3
    length: int = 8
    branches: int = 1

    def __post_init__(self) -> None:
        positive("ngram, length and branches", (self.ngram, self.length, self.branches))

    @property
    def most_nodes(self) -> int:
        return self.length * self.branches

    def new_index(self) -> "NGramIndex":
        """An index of a text, empty yet."""
        return NGramIndex(self.ngram)

    def start(self, request: DraftRequest) -> DraftSession:
        return _PromptLookupSession(self)


class NGramIndex:
    """A text that grows at its end, and where each of its n-grams ended.

    Args:
        ngram: most tokens of an n-gram.
    """

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram
        self.tokens: list[int] = []
        # n-gram -> positions right after it, oldest first
        self.ends: dict[tuple[int, ...], list[int]] = {}

    def append(self, tokens: Sequence[int]) -> None:
        """Make the text longer."""
        start = len(self.tokens)
        self.tokens += tokens
        for end in range(start + 1, len(self.tokens) + 1):
            for n in range(1, min(self.ngram, end) + 1):
                self.ends.setdefault(tuple(self.tokens[end - n : end]), []).append(end)

    def continuations(self, root: int, length: int, places: int) -> list[list[int]]:
        """Copy what followed earlier occurrences of the newest tokens, at most so long and so many.

        The longest match comes first, then the most recent.

        Args:
            root: the newest token, which is not yet in the text.
        """
        return [self._copy(end, root, length) for end in self._matches(root, places)]

    def _copy(self, end: int, root: int, length: int) -> list[int]:
        copied = self.tokens[end : end + length]
        return copied if len(copied) == length else [*copied, root]

    def _matches(self, root: int, places: int) -> list[int]:
        """Positions after earlier occurrences of the newest tokens."""
        newest = (*self.tokens[max(len(self.tokens) - self.ngram + 1, 0) :], root)
        found: list[int] = []
        for n in range(len(newest), 0, -1):
            for end in reversed(self.ends.get(newest[-n:], [])):
                if end not in found:
                    found.append(end)
                if len(found) == places:
                    return found
        return found


class _PromptLookupSession(DraftSession):
    def __init__(self, config: PromptLookup) -> None:
        self.config, self.index = config, config.new_index()

    def propose(self, root: int, context: Context) -> DraftTree:
        length = min(self.config.length, context.max_draft_len)
        tokens, parents = [root], [-1]
        children: dict[tuple[int, int], int] = {}
        for copied in self.index.continuations(root, length, self.config.branches):
            node = 0
            for token in copied:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = children[node, token]
        return DraftTree.of(tokens, parents)

    def update(self, verified: VerifiedTree) -> None:
        self.index.append(verified.tokens)
