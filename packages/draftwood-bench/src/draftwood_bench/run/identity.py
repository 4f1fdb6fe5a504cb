"""Check that a measured text is the model's own.

At temperature 0 texts must be identical, and above it too where a method matches; other methods
are judged by a two-sample test of token distributions.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch

from draftwood import engine, methods
from draftwood.drafters.drafter import VerifiedTree
from draftwood.engine import Options
from draftwood.models.model import Model, ModelSession
from draftwood.models.requirements import require_ability
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.testing.promises import Divergence, first_divergence
from draftwood.tree import DraftTree
from draftwood.verifiers.verifier import NodeProbs
from draftwood_bench.records.significance import is_strict, two_sample
from draftwood_bench.run.optimal import optimal_acceptance

PREFILL = 512  # tokens of a pass over the text before
CANDIDATES = 8  # places among which the one with the most uncertain next token is taken


def divergence(
    model: Model, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], dtype: str
) -> Divergence | None:
    """Find where a greedy text leaves plain decoding's; None if it does not.

    A tie counts only in 8- and 11-bit precision.
    """
    found = first_divergence(model, prompt, plain, other)
    if found is None or not is_strict(dtype):
        return found
    return replace(found, tolerance=0.0, tie=False)


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
    method: methods.Method,
    sampling: Sampling,
    prompt: Sequence[int],
    answer: Sequence[int],
    samples: int,
    seed: int,
    exact: bool = True,
) -> DistributionTest | None:
    """Compare the distribution of the token after some place of an answer.

    None if there is nothing to compare. Of some random places at which the method drafts, the one
    with the most uncertain next token is taken. The method decodes from there again for every
    sample: the token before the place is made its root, so the sampled token is the first that the
    verifier decides about. The text up to there is run once.

    Raises:
        ValueError: for a model that cannot fork a session.
    """
    if len(answer) < 2:
        return None
    require_ability(model, "fork", "a test of the next token's distribution")
    rng, positive = Rng(seed), seed % 2**64  # of numbers below 0 NumPy makes no generator
    with closing(model.start()) as session:
        # after answer[0], answer[1], ...
        logits = session.extend([*prompt, *answer[:-1]]).logits[len(prompt) :]
    distributions = sampling.probs(logits.float().cpu().numpy())
    places = np.random.default_rng(positive).permutation(len(distributions))[:CANDIDATES].tolist()
    places.sort(
        key=lambda each: -float(torch.special.entr(torch.from_numpy(distributions[each])).sum())
    )
    for place in places:
        context = [*prompt, *answer[:place]]
        # room for whole trees
        options = Options(sampling, 64, exact=exact)
        with closing(
            _Prefilled(model, method, context, answer[place], options, seed + 1)
        ) as decoded:
            if decoded.drafts:
                plain = [rng.draw(distributions[place]) for _ in range(samples)]
                drawn = [decoded.draw(number) for number in range(samples)]
                return DistributionTest(place + 1, samples, two_sample(plain, drawn, positive))
    return None


class _Prefilled:
    """Method at one place of a text, which it can continue many times.

    Target and draft model run the text up to there once; each sample copies their caches.

    Args:
        context: the text before the root.
        root: the token below which the method drafts.
        options: of each sample, but for its seed.
        seed: of the first sample; the next ones have the seeds after it.

    Attributes:
        drafts: whether the method has any draft token there.
    """

    def __init__(
        self,
        model: Model,
        method: methods.Method,
        context: list[int],
        root: int,
        options: Options,
        seed: int,
    ) -> None:
        self.model, self.method, self.context, self.root = model, method, context, root
        self.options, self.seed = options, seed
        self.prompt: list[VerifiedTree] = []
        self.origin = self._decoding(model.start(), 0)
        try:
            for start in range(0, len(context), PREFILL):
                self._run(context[start : start + PREFILL])
            # never verified, so that the draft model's cache stays at the end of the context
            self.drafts = len(self.origin.draft.propose(root, self.origin.context_for())) > 1
        except BaseException:
            self.origin.close()
            raise

    def _decoding(self, session: ModelSession, number: int) -> engine.Sequence:
        options = replace(self.options, seed=self.seed + number)
        drafter, verifier = self.method.drafter, self.method.verifier
        try:
            sequence = engine.Sequence(
                self.model, drafter, verifier, self.context, options, session
            )
        except BaseException:
            session.close()
            raise
        sequence.begin(self.root, {})
        return sequence

    def _run(self, chunk: Sequence[int]) -> None:
        reads = self.origin.draft.reads
        output = self.origin.session.extend(chunk, "all" if reads.logits else "last", reads.hidden)
        tree = DraftTree.chain(chunk)
        self.prompt.append(VerifiedTree(tree, range(len(chunk)), output if reads else None))
        self.origin.draft.update(self.prompt[-1])

    def draw(self, number: int) -> int:
        """The first token that one step of the method emits below the root."""
        sequence = self._decoding(self.origin.session.fork(), number)
        sequence.tell_within = 0.0  # no step follows in its row
        with closing(engine.Scheduler()) as batch:
            batch.add(sequence)
            for verified in self.prompt:
                sequence.draft.update(verified)
            sequence.draft.follow(self.origin.draft)
            (event,) = batch.step()
        if event.error is not None:
            raise event.error
        assert event.progress is not None  # a text that has begun tells of each pass
        return event.progress.tokens[0]

    def close(self) -> None:
        """Release the caches."""
        self.origin.close()


def root_bound(tree: DraftTree, probs: NodeProbs) -> float | None:
    """Greatest probability with which any exact rule could accept a child of the root: alpha*.

    For drawn children it is taken over the draws. Children chosen by another rule are accepted with
    the target's probability at most. So are all children at temperature 0, where nothing is drawn,
    and children that were each drawn from another row. None for drafts made with the noise of the
    target's draw in view: if p were known exactly they would all be accepted.
    """
    children, p = tree.children[0], probs[0]
    if tree.draw == "coupled":
        return None
    if tree.draw in ("chosen", "named") or tree.probs is None or float(p.max()) == 1.0:
        return float(p[sorted({tree.token_list[child] for child in children})].sum())
    return optimal_acceptance(p, tree.probs[0], len(children), tree.draw)
