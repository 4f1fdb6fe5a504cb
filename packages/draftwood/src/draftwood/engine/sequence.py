"""The state of a text under way."""

from collections import abc
from typing import TYPE_CHECKING

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.drafters.drafter import Drafter, DraftSession
from draftwood.engine.executors.executor import Executor
from draftwood.engine.executors.starting import start_executor
from draftwood.engine.options import FinishReason, Options
from draftwood.engine.prefill import Prefill, check_prompt, context_limit
from draftwood.engine.task import ALONE, SequenceStatus, StepBudget
from draftwood.models.model import Model, ModelInput, ModelOutput, ModelSession
from draftwood.models.requirements import require_ability
from draftwood.native.threads import survive_forks
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.stats import Step, TokenLogprob
from draftwood.verifiers.verifier import Verifier

if TYPE_CHECKING:
    from draftwood.engine.constraints import Branches

TELL_WITHIN = 0.02
"""Seconds after which no further step of a row begins, and the text is told of those made.

A stream is told this and one step late at most. At the end of a row each text costs its part of
Python; in 8 ms a row of SmolLM2-135M would have two or three passes.
"""

SMOOTHING = 0.1
"""Weight of a step in the mean of the tokens that a step emits."""


class Sequence:
    """One text under way, as a task of a ``Scheduler``.

    Its prompt is run in chunks by ``prefill``, then ``executor`` makes one step after the other,
    until ``finish_reason`` is set.

    Args:
        session: one that has run the prompt already, for those who call ``begin`` instead.

    Attributes:
        context: all tokens before the root.
        root: the newest token, which no pass has read yet; -1 before the first.
        emitted: tokens of the answer so far.
        branches: states of the constraint, where there is one.
        sessions: on the target and on what drafts; none before the first pass.
        draft: session of the drafter.
        has_draft_model: True if a model drafts whose session is not among ``sessions``.
        tell_within: seconds of steps in a row; longer where nobody waits for each piece.

    Raises:
        ValueError: for an empty prompt, one that does not fit the context, a constraint or a
            prediction for another vocabulary, a prediction for a drafter that takes none, and a
            lossy verifier where the options ask for exactness.
    """

    session: ModelSession
    draft: DraftSession
    executor: Executor

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        verifier: Verifier,
        prompt: abc.Sequence[int],
        options: Options,
        session: ModelSession | None = None,
    ) -> None:
        survive_forks()
        self.branches: Branches | None = None
        options = options.within_context(len(prompt))
        if options.constraint is not None:
            from draftwood.engine.constraints import constrained

            options, self.branches = constrained(options, options.constraint, target, len(prompt))
        self.target, self.drafter, self.verifier, self.options = target, drafter, verifier, options
        self.limit = context_limit(target, options.context)
        if options.exact and not verifier.exact_for:
            raise ValueError(
                f"{verifier.name} verification changes what the model would say; pass exact=False"
                " to allow it, or use a lossless method"
            )
        if session is None:
            check_prompt(prompt, target, options.context)
        options.require_prediction(drafter, target.vocab_size)
        self.prompt = list(prompt)
        self.context = Context(list(prompt), len(prompt))
        self.rng = Rng(options.seed, noise=not options.sampler.greedy)
        self.stops = [rule.start() for rule in options.stop_rules]
        self.sessions: list[ModelSession] = []
        self.has_draft_model, self.tell_within = False, TELL_WITHIN
        self._unclosed: Executor | None = None
        self._planned: Executor  # by it the pass under way was planned
        self._expected_tokens = 1.0  # of a step
        self.root = -1
        self.emitted = 0
        self.finish_reason: FinishReason | None = None
        self.prefill = Prefill(self)
        if session is not None:
            self.prefill.session = session
            self._start_on(session)

    def record_prompt(self, count: int) -> None:
        """Record the prompt's log-probabilities as it is run, which the first pass begins.

        Args:
            count: most probable tokens to report at each place of the prompt.
        """
        from draftwood.engine.logprobs import PromptLogprobs

        self.prefill.logprobs = PromptLogprobs(self.prompt, count)

    @property
    def prompt_logprobs(self) -> abc.Sequence[TokenLogprob | None]:
        """Log-probability of each token of the prompt so far, the first of which has none.

        Nothing where they are not recorded.
        """
        return () if self.prefill.logprobs is None else self.prefill.logprobs.found

    @property
    def followed(self) -> int:
        """Tokens of the prediction that are part of the answer; 0 without a prediction.

        A text that has ended never runs its newest token, so its drafter does not hear of it.
        """
        found = self.options.predicted
        if found is None:
            return 0
        is_root_emitted = self.emitted > len(self.context.tokens) - self.context.prompt
        count = found.followed + (is_root_emitted and self.root == found.following)
        return min(count, self.emitted)

    # as a task

    @property
    def prompt_left(self) -> int:
        """Tokens that are yet to be run before the root."""
        return self.prefill.left

    @property
    def status(self) -> SequenceStatus:
        run = self.prefill
        left = run.left
        expected = 0.0 if left else self._expected_tokens
        drafts = self.has_draft_model or len(self.sessions) > 1
        return SequenceStatus(left, run.length, expected, run.wants, run.cache, drafts)

    def open(self, with_prefix: bool = True) -> None:
        """Start sessions of the target and of what drafts.

        Args:
            with_prefix: False begins with nothing of what is known of the prompt.
        """
        self._start_on(self.prefill.start(with_prefix))
        self.prefill.know(self.prefill.reused)

    def plan(self, budget: StepBudget = ALONE) -> abc.Sequence[ModelInput]:
        """Run a chunk of the prompt, or the next tree; the first call opens the caches."""
        if not self.sessions:
            self.open()
        self._planned = self.prefill if self.prefill.left else self.executor
        return self._planned.plan(budget)

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        """Take the outputs of what was planned: its steps, none while they need another pass."""
        return self.prefill.told_by(self._planned.commit(outputs, seconds))

    def preempt(self) -> bool:
        """Give the cache back for now; False where there is none."""
        has_tokens = self.prefill.length > 0
        self.prefill.preempt()  # a pass that failed may have left blocks without tokens
        if has_tokens:
            self.executor.preempt()
        return has_tokens

    def close(self) -> None:
        """Give the caches back, and end the drafter's session; a second call does nothing."""
        unclosed, self._unclosed = self._unclosed, None
        try:
            if unclosed is not None and self.root >= 0:
                self.prefill.remember()
        finally:
            try:
                if unclosed is not None:
                    unclosed.close()
            finally:
                for session in self.sessions:
                    session.close()

    def _start_on(self, session: ModelSession) -> None:
        self.session = session
        self.sessions.append(session)
        self.executor = self._unclosed = start_executor(self)
        if self.draft.reads.hidden:
            require_ability(self.target, "hidden", self.drafter.name)

    # for executors

    def context_for(self, budget: StepBudget = ALONE) -> Context:
        """Collect what a drafter may know of the text."""
        known = self.context
        max_draft_len = self.max_draft_len
        return Context(known.tokens, known.prompt, max_draft_len, budget.shared, budget.last_passes)

    @property
    def tokens_left(self) -> int:
        """Tokens that the text may still take."""
        most = self.options.max_new_tokens - self.emitted
        return most if self.limit is None else min(most, self.limit - len(self.context.tokens))

    @property
    def max_draft_len(self) -> int:
        """Draft tokens in a row that may still become text.

        A forward pass emits one token more than it accepts. None where a limited cache has no room
        for a tree.
        """
        return max(self.tokens_left - 1, 0) if self.prefill.has_tree_room else 0

    def begin(
        self,
        root: int,
        seconds: dict[str, float],
        logits: Float[np.ndarray, "1 vocab"] | None = None,
    ) -> Step:
        """Take a token drawn after everything in the context.

        The first token of an answer always is one.

        Args:
            logits: it was drawn from, for requests that ask for log-probabilities.
        """
        self.root = root
        tokens = self.emit([root])
        return Step(tokens, seconds=seconds, logprobs=self.logprobs(tokens, logits, [0]))

    def keep(self, path: list[int], accepted: list[int], root: int) -> None:
        """Keep a path of the tree that was run.

        Args:
            path: its nodes, the root of the tree first.
            accepted: their tokens.
            root: of the next tree.
        """
        self.session.commit(path)
        self.go_on(accepted, root)

    def go_on(self, accepted: list[int], root: int) -> None:
        """Go on behind tokens that the session has kept.

        Args:
            accepted: from the root on.
            root: of the next tree.
        """
        self.context.tokens.extend(accepted)
        if self.branches is not None:
            self.branches.keep(accepted)
        self.root = root

    def emit(self, tokens: list[int]) -> list[int]:
        """Cut tokens at the end of the text, which this finds."""
        tokens = tokens[: self.options.max_new_tokens - self.emitted]
        for place, token in enumerate(tokens):
            if token in self.options.stop_tokens:
                tokens, self.finish_reason = tokens[: place + 1], "stop"
                break
        for check in self.stops:
            tokens = tokens[: check.add(tokens)]
            if check.stopped:
                self.finish_reason = "stop"
        self.emitted += len(tokens)
        self._expected_tokens += SMOOTHING * (len(tokens) - self._expected_tokens)
        full = self.limit is not None and len(self.context.tokens) >= self.limit
        if self.finish_reason is None and (self.emitted >= self.options.max_new_tokens or full):
            self.finish_reason = "length"
        return tokens

    def logprobs(
        self,
        tokens: abc.Sequence[int],
        logits: Float[np.ndarray, "nodes vocab"] | None,
        path: list[int],
    ) -> tuple[TokenLogprob, ...] | None:
        """The target's own log-probabilities of emitted tokens, each at the node before it."""
        count = self.options.logprobs
        if count is None or logits is None:
            return None
        from draftwood.engine.logprobs import token_logprobs

        rows = [as_array(logits[node : node + 1]) for node in path[: len(tokens)]]
        return token_logprobs(tokens, np.concatenate(rows), count)
