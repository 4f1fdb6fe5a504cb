"""Is a measured text the model's own?

At temperature 0 by identity, and above it too where a method matches; of others by a two-sample
test of token distributions.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from draftwood.bench.records.significance import STRICT, two_sample
from draftwood.engine.batch import Batch
from draftwood.engine.decoding import Decoding
from draftwood.engine.method import Method
from draftwood.engine.options import Options
from draftwood.engine.task import Event
from draftwood.interfaces.model import Model
from draftwood.interfaces.verifier import NodeProbs
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.testing.promises import Divergence, first_divergence
from draftwood.tree import DraftTree
from draftwood.verifiers.optimal import optimal_acceptance

CANDIDATES = 8  # places looked at for the one where the model is least sure


def divergence(
    model: Model, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], dtype: str
) -> Divergence | None:
    """Where a greedy text leaves plain decoding's, None if it does not.

    A tie counts only in 8- and 11-bit precision.
    """
    found = first_divergence(model, prompt, plain, other)
    return (
        replace(found, tolerance=0.0, tie=False) if found is not None and dtype in STRICT else found
    )


@dataclass(frozen=True)
class DistributionTest:
    """Two samples of the token that follows one context: by plain decoding and by another method.

    Attributes:
        position: of that token in plain decoding's answer.
        samples: of each kind.
        p_value: probability of samples at least this different if both follow one distribution.
    """

    position: int
    samples: int
    p_value: float


def distribution_test(
    model: Model,
    method: Method,
    sampling: Sampling,
    prompt: Sequence[int],
    answer: Sequence[int],
    samples: int,
    seed: int,
    exact: bool = True,
) -> DistributionTest | None:
    """Compare the distribution of the token after some place of an answer.

    None where there is nothing to compare. Of some places drawn at random the one with the most
    open next token is taken at which the method drafts at all. The method decodes from there again
    for every sample: the token before the place is made its root, so the sampled token is the first
    that the verifier decides about.
    """
    if len(answer) < 2:
        return None
    rng = Rng(seed)
    session = model.start()
    try:
        # after answer[0], answer[1], ...
        logits = session.extend([*prompt, *answer[:-1]]).logits[len(prompt) :]
    finally:
        session.close()
    distributions = sampling.probs(logits.cpu())
    places = np.random.default_rng(seed).permutation(len(distributions))[:CANDIDATES].tolist()
    places.sort(key=lambda each: -float(torch.special.entr(distributions[each]).sum()))

    def draw(place: int, number: int) -> tuple[int, bool]:
        context = [*prompt, *answer[:place]]
        # room for whole trees
        options = Options(sampling, 64, frozenset(), seed + 1 + number, exact)
        return _next_token(model, method, context, answer[place], options)

    for place in places:
        first, drafted = draw(place, 0)
        if drafted:
            plain = [rng.draw(distributions[place]) for _ in range(samples)]
            drawn = [first, *(draw(place, number)[0] for number in range(1, samples))]
            return DistributionTest(place + 1, samples, two_sample(plain, drawn, seed))
    return None


def _next_token(
    model: Model, method: Method, context: list[int], root: int, options: Options
) -> tuple[int, bool]:
    """The first token that one step of the method emits below this root.

    Also whether it had any draft token.
    """
    decoding = Decoding(model, method.drafter, method.verifier, context, options)
    with closing(Batch()) as batch:
        batch.add(decoding)
        while decoding.root < 0:
            _told(batch.step())
        decoding.root = root
        step = _told(batch.step())
    return step.tokens[0], step.drafted > 0


def _told(events: Sequence[Event]) -> Any:
    """What the only task of a batch tells; its error is raised."""
    (event,) = events
    if event.error is not None:
        raise event.error
    return event.progress


def root_bound(tree: DraftTree, probs: NodeProbs) -> float | None:
    """The greatest probability with which any exact rule could accept a child of the root.

    This is alpha*. For drawn children it is taken over the draws; children chosen by another rule
    are accepted with what the target gives them at most. So are all where the target leaves no
    choice (temperature 0), for then nothing is drawn. None for drafts made with the noise of the
    target's draw in view: if p were known right they would all be accepted.
    """
    children, p = tree.children[0], probs[0]
    if tree.draw == "coupled":
        return None
    if tree.draw == "chosen" or tree.probs is None or float(p.max()) == 1.0:
        return float(p[sorted({tree.token_list[child] for child in children})].sum())
    return optimal_acceptance(p, tree.probs[0], len(children), tree.draw)
