"""Draft, run, verify: one after the other."""

from collections import abc
from typing import TYPE_CHECKING

from draftwood.drafters.drafter import Drafter, VerifiedTree
from draftwood.engine.executors.executor import Stopwatch, TextHolder
from draftwood.engine.task import StepBudget
from draftwood.models.model import ForwardInput, ModelInput, ModelOutput
from draftwood.sampling import Context, LazyProbs
from draftwood.stats import Step
from draftwood.tree import DraftTree
from draftwood.verifiers.verifier import Verdict

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence


class InTurn(TextHolder):
    """Drafts a tree, runs the target over it, verifies it; implements ``Executor``.

    Args:
        text: whose drafter has started.
    """

    def __init__(self, text: "Sequence") -> None:
        super().__init__(text)
        self._session = text.draft
        self._run: ForwardInput | None = None
        self._seconds: dict[str, float] = {}

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        self._run, self._seconds = self.draft(budget)
        return [self.text.draft.attach(self._run.tree) or self._run]

    def draft(self, budget: StepBudget) -> tuple[ForwardInput, dict[str, float]]:
        """Draft the next tree; gives its input and the seconds by phase."""
        text, watch = self.text, Stopwatch()
        context = text.context_for(budget)
        tree = self._fitting(self._proposed(context), context.max_draft_len)
        watch.lap("draft")
        return ForwardInput(text.session, tree, hidden=text.draft.reads.hidden), watch.seconds

    def _proposed(self, context: Context) -> DraftTree:
        return self.text.draft.propose(self.text.root, context)

    def _fitting(self, tree: DraftTree, max_draft_len: int) -> DraftTree:
        """Fit a tree to the end of the text and to its constraint.

        Raises:
            ValueError: for draws that the verifier is not exact for, where texts are to be exact.
        """
        text, exact_for = self.text, self.text.verifier.exact_for
        if max_draft_len < len(tree):
            tree = tree.truncated(max_draft_len)  # of a drafter that does not mind
        if text.branches is not None and (
            tree.draw in ("chosen", "coupled") and tree.draw in exact_for
        ):
            tree = text.branches.fit(tree, max_draft_len)
            cache, rows = text.prefill.cache, text.prefill.tree_rows
            if len(tree) > rows and cache is not None and cache.free_blocks is not None:
                tree = tree.keep(range(rows))  # the cache has no room for all that is forced
        if text.options.exact and len(tree) > 1 and tree.draw not in exact_for:
            raise ValueError(
                f"{text.verifier.name} verification changes what the model would say on {tree.draw}"
                " drafts; pass exact=False to allow it, or use a verifier that is exact for them"
            )
        return tree

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        assert self._run is not None  # commit follows plan
        self._seconds["target"] += seconds
        return [self.verify(self._run, outputs[0], self._seconds)]

    def verify(self, run: ForwardInput, output: ModelOutput, seconds: dict[str, float]) -> Step:
        """Verify the tree, and commit what is accepted.

        Args:
            seconds: by phase so far.
        """
        text, watch = self.text, Stopwatch(seconds)
        tree = run.tree
        require_drafted(tree, text.drafter, text.emitted)
        probs = self._probs(output, tree)
        bound = text.options.bound
        most = bound(tree, probs) if bound and len(tree) > 1 else None
        verdict = text.verifier(tree, probs, text.rng)
        watch.lap("verify")
        return self.commit_path(tree, verdict, output, watch.seconds, most)

    def _probs(self, output: ModelOutput, tree: DraftTree) -> LazyProbs:
        text = self.text
        # the one place where the host waits for the device
        return LazyProbs(output.rows, text.options.sampler, tree, text.context)

    def commit_path(
        self,
        tree: DraftTree,
        verdict: Verdict,
        output: ModelOutput,
        seconds: dict[str, float],
        bound: float | None = None,
    ) -> Step:
        """Keep the accepted path, and let the drafter learn of it.

        Args:
            seconds: by phase so far.
            bound: on the acceptance at the root, where it was asked for.
        """
        text, watch = self.text, Stopwatch(seconds)
        path = [0, *verdict.path]
        accepted = [tree.token_list[node] for node in path]
        text.keep(path, accepted, verdict.next_token)
        watch.lap("verify")
        if tree.is_broken:
            from draftwood.engine.undrafted import without_drafts

            text.draft = without_drafts(text.drafter)
        self._learn(VerifiedTree(tree, path, output))
        watch.lap("draft")
        tokens = text.emit([*accepted[1:], verdict.next_token])
        kept = min(len(verdict.path), len(tokens))
        return Step(
            tokens,
            len(tree) - 1,
            kept,
            watch.seconds,
            tree,
            tuple(verdict.path[:kept]),
            bound,
            text.logprobs(tokens, output.rows, path),
        )

    def _learn(self, verified: VerifiedTree) -> None:
        self.text.draft.update(verified)

    def preempt(self) -> None:
        """Nothing is kept in the cache between two steps."""

    def close(self) -> None:
        self._session.close()


def require_drafted(tree: DraftTree, drafter: Drafter, emitted: int) -> None:
    """Raise ValueError where draft tokens were drawn from what is no number.

    A verifier might accept any of them.

    Args:
        drafter: of the tree, which did not replace such rows.
        emitted: tokens of the text so far.
    """
    drawn = None if tree.rows is not None else tree.drawn_chances()  # rows never are
    if drawn is not None and not bool((drawn >= 0.0).all()):
        raise ValueError(
            f"{drafter.name} drafted token {emitted + 1} of the text and those behind it from"
            " probabilities that are NaN: the draft model's weights are damaged, or its dtype is"
            " too small for it"
        )
