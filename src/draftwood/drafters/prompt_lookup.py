"""Draft copies of what followed the newest tokens before."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.interfaces.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
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
    """

    name: ClassVar[str] = "prompt-lookup"
    ngram: int = 3
    length: int = 8
    branches: int = 1

    def __post_init__(self) -> None:
        positive("ngram, length and branches", (self.ngram, self.length, self.branches))

    def start(self, request: DraftRequest) -> DraftSession:
        return _PromptLookupSession(self)


class _PromptLookupSession(DraftSession):
    def __init__(self, config: PromptLookup) -> None:
        self.config = config
        self.tokens: list[int] = []
        # n-gram -> positions right after it, oldest first
        self.ends: dict[tuple[int, ...], list[int]] = {}

    def propose(self, root: int, context: Context) -> DraftTree:
        text, length = [*self.tokens, root], min(self.config.length, context.room)
        tokens, parents = [root], [-1]
        children: dict[tuple[int, int], int] = {}
        for end in self._matches(text):
            node = 0
            for token in text[end : end + length]:
                if (node, token) not in children:
                    children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = children[node, token]
        return DraftTree.of(tokens, parents)

    def update(self, verified: VerifiedTree) -> None:
        start = len(self.tokens)
        self.tokens += verified.tokens
        for end in range(start + 1, len(self.tokens) + 1):
            for n in range(1, min(self.config.ngram, end) + 1):
                self.ends.setdefault(tuple(self.tokens[end - n : end]), []).append(end)

    def _matches(self, text: list[int]) -> list[int]:
        """Positions after earlier occurrences of the newest tokens.

        The longest match comes first, then the most recent.
        """
        found: list[int] = []
        for n in range(min(self.config.ngram, len(text)), 0, -1):
            for end in reversed(self.ends.get(tuple(text[-n:]), [])):
                if end not in found:
                    found.append(end)
                if len(found) == self.config.branches:
                    return found
        return found
