"""Sampling and masks for those that draft from rows of another origin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from jaxtyping import Bool, Float

from draftwood.models.verified import DraftRequest
from draftwood.rng import Rng
from draftwood.sampling import Context, MaskedSampler, Sampler, Sampling
from draftwood.testing.promises import tables


@dataclass(frozen=True)
class Even:
    """A sampler of one's own, which forbids odd tokens."""

    inner: Sampler

    @property
    def greedy(self) -> bool:
        return self.inner.greedy

    @property
    def reads_context(self) -> bool:
        return False

    @property
    def unmasked(self) -> Sampler:
        return self.inner

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]:
        return self.inner.probs(logits, contexts)

    def for_drafting(self) -> "Even":
        return Even(self.inner.for_drafting())

    def allowed(self, context: Context) -> Bool[np.ndarray, " vocab"] | None:
        return np.arange(8) % 2 == 0


class Other:
    """A sampler that is neither of draftwood's nor masked."""

    def for_drafting(self) -> "Other":
        return self


def request(sampler: Any) -> DraftRequest:
    return DraftRequest(sampler, Rng(1), tables()[0].start())


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "masked"])
def test_rows_are_sampled_with_temperature_and_cuts_alone(wrapped: bool) -> None:
    asked = Sampling(0.7, top_k=5, top_p=0.9, repetition_penalty=1.3, min_tokens=4)
    cuts = Sampling(0.7, top_k=5, top_p=0.9)
    assert request(Even(asked) if wrapped else asked).row_sampling == cuts
    certain = Sampling(0.0, top_k=5)
    assert request(Even(certain) if wrapped else certain).row_sampling == Sampling(1.0)


def test_another_sampler_says_nothing_of_rows() -> None:
    assert request(Other()).row_sampling == Sampling(1.0)


def test_a_mask_is_that_of_drafts() -> None:
    assert request(Sampling(1.0)).mask is None
    mask = request(Even(Sampling(0.0))).mask
    assert isinstance(mask, MaskedSampler)
    assert not mask.greedy
    allowed = mask.allowed(Context([1], 1))
    assert allowed is not None
    assert allowed.sum() == 4
