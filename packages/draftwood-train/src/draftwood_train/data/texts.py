"""One text of a data set, as every recipe reads it."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TopTokens:
    """The target's distribution where it wrote an answer: its likeliest tokens and their share.

    Places run from the one before the answer's first token to the text's last.

    Attributes:
        tokens: ids, likeliest first.
        logs: log probabilities of these.
        log_normalizer: logsumexp of the logits over the whole vocabulary.
    """

    tokens: Int[Tensor, "places top"]
    logs: Float[Tensor, "places top"]
    log_normalizer: Float[Tensor, " places"]

    @property
    def rest(self) -> Float[Tensor, " places"]:
        """Probability of all other tokens together."""
        return (1 - self.logs.exp().sum(-1)).clamp_min(0)


@dataclass(frozen=True, eq=False)
class AnsweredText:
    """A prompt and the target's own answer.

    Attributes:
        tokens: prompt and answer.
        answer: place of the answer's first token.
        is_greedy: whether the answer is the likeliest or drawn at temperature 1.
        source: set that the prompt comes from; "own" where the target wrote it.
    """

    tokens: Int[Tensor, " places"]
    answer: int
    is_greedy: bool
    source: str


@dataclass(frozen=True, eq=False)
class TokenText(AnsweredText):
    """A text read without running the target.

    Attributes:
        kind: of the task, such as "code" or "summary"; the source where none is known.
        top: the target's distribution at the answer; None where it was not stored.
    """

    kind: str
    top: TopTokens | None


@dataclass(frozen=True, eq=False)
class StoredText(AnsweredText):
    """A text with what the target computed on the way.

    Attributes:
        states: inputs of decoder layers at each place, in the order of the data set's ``layers``;
            the number after the last layer means the state after the final norm.
        log_normalizer: of the target's logits over its whole vocabulary at each place, so that
            exp(logit - log_normalizer) is a probability; 0 in the prompt where ``top`` has it.
        kind: of the task; the source where none is known.
        top: the target's distribution at the answer; None where states were stored.
    """

    states: Float[Tensor, "places layers dim"]
    log_normalizer: Float[Tensor, " places"]
    kind: str = ""
    top: TopTokens | None = None


class TextsInMemory(list[StoredText]):
    """Texts that are in memory, told as those of a data set.

    Args:
        layers: whose inputs their states are.
    """

    def __init__(self, texts: Iterable[StoredText] = (), layers: tuple[int, ...] = ()) -> None:
        super().__init__(texts)
        self.layers = layers

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(text.tokens) for text in self]

    @property
    def answers(self) -> list[int]:
        """Place of the first token of each answer."""
        return [text.answer for text in self]

    @property
    def are_greedy(self) -> list[bool]:
        """Flags: true for texts whose answer is the likeliest, not drawn at temperature 1."""
        return [text.is_greedy for text in self]
