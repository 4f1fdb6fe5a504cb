"""Passages: what one writer adds to a text, and what a rule asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LEADER, FOLLOWER = "leader", "follower"


@dataclass(frozen=True)
class WrittenToken:
    """A token of a passage.

    Attributes:
        text: that it adds; empty while a character lacks bytes.
        token: its id; None where a server writes, which sends texts.
        logprob: in nats, before the temperature; None where the rule does not read it.
        entropy: of its distribution, in bits, likewise.
        is_end: True for a token that ends the text.
        count: tokens that it stands for; a server may send several in a piece.
    """

    text: str
    token: int | None = None
    logprob: float | None = None
    entropy: float | None = None
    is_end: bool = False
    count: int = 1


@dataclass(eq=False)
class Passage:
    """Tokens that one writer wrote in a row.

    Attributes:
        writer: its name.
        before: the answer in front of it.
        vocabulary: of its tokens' ids; None where it has none.
    """

    writer: str
    before: str
    vocabulary: str | None = None
    tokens: list[WrittenToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.tokens)

    @property
    def behind(self) -> str:
        """The answer up to its end."""
        return self.before + self.text

    @property
    def count(self) -> int:
        """Tokens that it holds."""
        return count_of(self.tokens)

    @property
    def ids(self) -> list[int]:
        """Token ids."""
        return [each.token for each in self.tokens if each.token is not None]

    @property
    def ends_text(self) -> bool:
        return bool(self.tokens) and self.tokens[-1].is_end

    def reaching(self, place: int) -> int:
        """Count the tokens up to a place in the answer, in characters; none is split."""
        reached = len(self.before)
        for count, each in enumerate(self.tokens):
            if reached >= place:
                return count
            reached += len(each.text)
        return len(self.tokens)


Until = Callable[[Passage], int | None]
"""Asked after each token of a passage under way: how many stay, where it ends here; else None."""


@dataclass(frozen=True)
class TurnRequest:
    """Asks a writer for a passage.

    Attributes:
        writer: its name.
        most: tokens; None for as many as the text may take.
        until: ends the passage; None lets it go on.
        reads: what ``until`` or the rule reads of distributions, which servers do not send.
        instead: the passage takes the newest one's place.
    """

    writer: str
    most: int | None = None
    until: Until | None = None
    reads: bool = False
    instead: bool = False


@dataclass(frozen=True)
class JudgeRequest:
    """Asks a writer for the mean log-probability that it gives the newest passage, in nats."""

    writer: str


def count_of(tokens: Sequence[WrittenToken]) -> int:
    """Count tokens, pieces of several as such."""
    return sum(each.count for each in tokens)


def text_of(passages: Sequence[Passage]) -> str:
    return passages[-1].behind if passages else ""
