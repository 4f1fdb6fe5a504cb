"""One text of a data set, as every recipe reads it."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class StoredText:
    """A prompt and the target's own answer, with what the target computed on the way.

    Attributes:
        tokens: prompt and answer.
        answer: place of the answer's first token.
        is_greedy: whether the answer is the likeliest or drawn at temperature 1.
        source: set that the prompt comes from; "own" where the target wrote it.
        states: inputs of decoder layers at each place, in the order of the data set's ``layers``;
            the number after the last layer means the state after the final norm.
        log_normalizer: of the target's logits over its whole vocabulary at each place, so that
            exp(logit - log_normalizer) is a probability.
    """

    tokens: Int[Tensor, " places"]
    answer: int
    is_greedy: bool
    source: str
    states: Float[Tensor, "places layers dim"]
    log_normalizer: Float[Tensor, " places"]
