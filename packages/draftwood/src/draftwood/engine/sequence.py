"""The loop: draft, run the target once over the drafts, keep what it agrees with."""

from collections import abc
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.engine.constraints import Branches, constrained
from draftwood.engine.logprobs import token_logprobs
from draftwood.engine.options import FinishReason, Options
from draftwood.engine.overlap import OverlappedSession
from draftwood.engine.prefill import Prefill, check_prompt
from draftwood.engine.root_first import RootFirst, node_probs
from draftwood.engine.stopwatch import Stopwatch
from draftwood.engine.task import Input, SequenceStatus, StepBudget
from draftwood.engine.undrafted import require_drafted, without_drafts
from draftwood.interfaces.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.interfaces.model import (
    ForwardInput,
    Model,
    ModelSession,
    Output,
    PromptInput,
    StepInput,
    require_ability,
)
from draftwood.interfaces.step import StepModel, Stepper
from draftwood.interfaces.verifier import Verdict, Verifier, follows_draws
from draftwood.native.step import NativeStep, UndrawableError
from draftwood.native.threads import survive_forks
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling, require_probs, undrawable
from draftwood.stats import Step, TokenLogprob

SMOOTHING = 0.1
"""What a step adds to the mean of the tokens that a step emits."""

ALONE = StepBudget()
"""A turn of a task that nothing shares a pass with."""


class Sequence:
    """One text under way, as a task of a ``Scheduler``.

    Its prompt is run in chunks, as long as there is time for, then a tree of draft tokens at a
    time, until ``finish_reason`` is set.

    Args:
        session: one that has run the prompt already, for those who call ``begin`` instead.

    Raises:
        ValueError: for an empty prompt, one that does not fit the context, a constraint for another
            vocabulary, and a lossy verifier where the options ask for exactness.
    """

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
        self.branches: Branches | None = None  # of the constraint, where there is one
        if options.constraint is not None:
            options, self.branches = constrained(options, options.constraint, target, len(prompt))
        self.target, self.drafter, self.verifier, self.options = target, drafter, verifier, options
        self.limit = target.context_length
        if options.exact and not verifier.exact_for:
            raise ValueError(
                f"{verifier.name} verification changes what the model would say; pass exact=False"
                " to allow it, or use a lossless method"
            )
        if session is None:
            check_prompt(prompt, target.vocab_size, self.limit)
        self.prompt = list(prompt)
        self.context = Context(list(prompt), len(prompt))  # all tokens before the root
        self.rng = Rng(options.seed, noise=not options.sampler.greedy)
        self.stops = [rule.start() for rule in options.stop]
        # on the target and on what drafts; none before the first pass
        self.sessions: list[ModelSession] = []
        self._unclosed: DraftSession | None = None
        self.prefill = Prefill(target, self.context.tokens, options)
        self.asked: PromptInput | ForwardInput | None = None  # for, by the last ``next_inputs``
        self._trees = RootFirst()
        self._stepper: Stepper | None = None  # where the library can make whole steps
        self._seconds: dict[str, float] = {}  # of the step under way
        self.turn = ALONE
        self._expected_tokens = 1.0  # of a step
        self._rows = 1  # of the last one
        self.root = -1
        self.emitted = 0
        self.finish_reason: FinishReason | None = None
        if session is not None:
            self.prefill.session = session
            self._start_on(session)

    def _start_on(self, session: ModelSession) -> None:
        self.session = session
        self.sessions.append(session)
        self.draft = self._unclosed = self.drafter.start(
            DraftRequest(self.options.sampler, self.rng, session, self.sessions)
        )
        if self.draft.reads.hidden:
            require_ability(self.target, "hidden", self.drafter.name)
        self._stepper = _stepper(self)

    def open(self, with_prefix: bool = True) -> None:
        """Start sessions of the target and of what drafts.

        Args:
            with_prefix: whether to begin with what is known of the prompt.
        """
        self._start_on(self.prefill.start(with_prefix))
        self.prefill.know(self.draft, self.prefill.reused)

    @property
    def prompt_left(self) -> int:
        """Tokens that are yet to be run before the root."""
        return self.prefill.left

    @property
    def status(self) -> SequenceStatus:
        run = self.prefill
        drafts = len(self.sessions) > 1 or isinstance(self._unclosed, OverlappedSession)
        expected = 0.0 if run.left else self._expected_tokens
        return SequenceStatus(run.left, run.length, expected, run.wants, run.cache, drafts)

    def preempt(self) -> bool:
        return self.prefill.preempt()

    def plan(self, turn: StepBudget = ALONE) -> list[Input]:
        """A chunk of the prompt, or the next tree; the first call opens the caches."""
        if not self.sessions:
            self.open()
        self.turn = turn
        if self.prompt_left:
            self._trees.lose_cache()
            self.asked = self.prefill.chunk(turn.prompt_rows, self.draft.reads, self.root < 0)
            return [self.asked]
        heard = replace(self.context, shared=turn.shared, last_pass=turn.last_pass)
        step = self._whole_step(heard)
        if step is not None:
            return [step]
        self.asked, self._seconds = self._trees.next(self)
        return [self.asked]

    def take(self, outputs: abc.Sequence[Any], seconds: float) -> Step | None:
        """What came of the inputs: a step, or None while the prompt goes on."""
        made = outputs[0]
        if isinstance(made, UndrawableError):
            raise undrawable(made.logits, self.emitted + made.draws) from None
        if isinstance(made, BaseException):
            raise made
        if isinstance(made, NativeStep):
            return self._took(made)
        given = self.asked
        if isinstance(given, PromptInput):
            start = self.session.length - len(given.tokens)
            return self.take_prompt(given.tokens, start, outputs[0], seconds)
        assert given is not None  # take follows next_inputs
        self._seconds["target"] = self._seconds.get("target", 0.0) + seconds
        return self._trees.take(self, given, outputs[0], self._seconds)

    @property
    def context_of_tree(self) -> Context:
        """What a drafter may know of the text."""
        turn = self.turn
        heard = {"shared": turn.shared, "last_pass": turn.last_pass}
        return replace(self.context, room=self._room(), **heard)

    def take_prompt(
        self, chunk: abc.Sequence[int], start: int, output: Output, seconds: float
    ) -> Step | None:
        """What came of a chunk of the prompt: the first token after the last one, else None.

        Args:
            start: place of its first token.
            seconds: that running it took.
        """
        watch = Stopwatch(self._seconds)
        watch.seconds["target"] += seconds
        if self.root < 0:
            self.prefill.take(self.draft, chunk, start, output)
        watch.lap("draft")
        self._seconds = watch.seconds
        if self.root >= 0 or start + len(chunk) < len(self.prompt):
            return None
        self.prefill.remember()
        contexts = [self.context] if self.options.sampler.reads_context else []
        logits = output.logits[-1:].cpu()
        probs = self.options.sampler.probs(logits, contexts)[0]
        require_probs(probs, logits[0], place=1)
        root = self.rng.draw(probs)
        watch.lap("verify")
        return self.begin(root, watch.seconds, logits)

    def begin(
        self, root: int, seconds: dict[str, float], logits: Float[Tensor, "1 vocab"] | None = None
    ) -> Step:
        """Take a token drawn after everything in the context.

        The first token of an answer always is one.

        Args:
            logits: it was drawn from, for requests that ask for log-probabilities.
        """
        self.root = root
        tokens = self._emit([root])
        return Step(tokens, seconds=seconds, logprobs=self._logprobs(tokens, logits, [0]))

    def propose(self, turn: StepBudget | None = None) -> tuple[ForwardInput, dict[str, float]]:
        """The tree to run next, and the seconds it took.

        Args:
            turn: None goes by the one that ``next_inputs`` was told.
        """
        self.turn = turn or self.turn
        watch = Stopwatch()
        context = self.context_of_tree
        tree, room = self.draft.propose(self.root, context), context.room
        # otherwise no path is that long, and asking for the depth could wait for a device
        if room < len(tree):
            tree = tree.truncated(room)  # of a drafter that does not mind the room
        if self.branches is not None and (
            tree.draw in ("chosen", "coupled") and tree.draw in self.verifier.exact_for
        ):
            tree = self.branches.fit(tree, room)
        if self.options.exact and len(tree) > 1 and tree.draw not in self.verifier.exact_for:
            raise ValueError(
                f"{self.verifier.name} verification changes what the model would say on {tree.draw}"
                " drafts; pass exact=False to allow it, or use a verifier that is exact for them"
            )
        watch.lap("draft")
        return ForwardInput(self.session, tree, hidden=self.draft.reads.hidden), watch.seconds

    def _whole_step(self, context: Context) -> StepInput | None:
        """A step that the library makes by itself, where it can."""
        if self._stepper is None:
            return None
        native = self.draft.native(context)
        if native is None:
            return None
        place = self.rng.next_draw[1]
        return self._stepper.step(native, self.root, place, self._room(), self._rows)

    def _took(self, made: NativeStep) -> Step:
        """Keep what came of such a step."""
        watch = Stopwatch(made.seconds)
        path, self._rows = made.path, len(made.tokens)
        self.rng.skip(len(path))
        self.session.commit(path)
        accepted = [made.tokens[node] for node in path]
        self.context.tokens.extend(accepted)
        self.root = made.next_token
        tree = self.draft.took(made)
        tokens = self._emit([*accepted[1:], self.root])
        kept = min(len(path) - 1, len(tokens))
        watch.lap("verify")
        return Step(tokens, len(tree) - 1, kept, watch.seconds, tree, tuple(path[1 : 1 + kept]))

    def settle(self, run: ForwardInput, output: Output, seconds: dict[str, float]) -> Step:
        """Verify the tree, keep the accepted path and tell the drafter."""
        watch = Stopwatch(seconds)
        # with the logits below the one place where the host waits for the device
        tree = run.tree.to("cpu")
        require_drafted(tree, self.drafter, self.emitted)
        probs = node_probs(output.logits.cpu(), self.options.sampler, tree, self.context)
        bound = self.options.bound(tree, probs) if self.options.bound and len(tree) > 1 else None
        verdict = self.verifier(tree, probs, self.rng)
        watch.lap("verify")
        return self.keep(ForwardInput(run.session, tree), verdict, output, watch.seconds, bound)

    def keep(
        self,
        run: ForwardInput,
        verdict: Verdict,
        output: Output,
        seconds: dict[str, float],
        bound: float | None = None,
    ) -> Step:
        """Keep the accepted path and tell the drafter."""
        watch = Stopwatch(seconds)
        tree, path = run.tree, [0, *verdict.path]
        self.session.commit(path)
        accepted = [tree.token_list[node] for node in path]
        self.context.tokens.extend(accepted)
        if self.branches is not None:
            self.branches.keep(accepted)
        self.root = verdict.next_token
        watch.lap("verify")
        if tree.is_broken:
            self.draft = without_drafts(self.drafter)
        self.draft.update(VerifiedTree(tree, path, output))
        watch.lap("draft")
        tokens = self._emit([*accepted[1:], self.root])
        kept = min(len(verdict.path), len(tokens))
        logprobs = self._logprobs(tokens, output.logits, path)
        spent, path = watch.seconds, verdict.path[:kept]
        drafting = self.draft.account() if isinstance(self.draft, OverlappedSession) else None
        told = tokens, len(tree) - 1, kept, spent, tree, tuple(path), bound, logprobs
        return Step(*told, drafting=drafting)

    def _logprobs(
        self,
        tokens: abc.Sequence[int],
        logits: Float[Tensor, "nodes vocab"] | None,
        path: list[int],
    ) -> tuple[TokenLogprob, ...] | None:
        """The target's own log-probabilities of emitted tokens, each at the node before it."""
        count = self.options.logprobs
        if count is None or logits is None:
            return None
        rows = torch.cat([logits[node : node + 1] for node in path[: len(tokens)]])
        return token_logprobs(tokens, rows, count)

    def _room(self) -> int:
        """Draft tokens in a row that may still become text.

        A forward pass emits one token more than it accepts.
        """
        room = self.options.max_new_tokens - self.emitted - 1
        if self.limit is not None:
            room = min(room, self.limit - 1 - len(self.context.tokens))
        return max(room, 0)

    def close(self) -> None:
        """Give the caches back, and end the drafter's session; a second call does nothing."""
        unclosed, self._unclosed = self._unclosed, None
        try:
            if unclosed is not None and self.root >= 0:
                self.prefill.remember()
            if unclosed is not None:
                unclosed.close()
        finally:
            for session in self.sessions:
                session.close()

    def _emit(self, tokens: list[int]) -> list[int]:
        """The tokens up to the end of the text, which this finds."""
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


def _stepper(sequence: Sequence) -> Stepper | None:
    """What makes whole steps of a text, where nothing is wanted that only Python can do.

    Wanted are the target's own draws, of logits that are but divided by a temperature.
    """
    options, verifier = sequence.options, sequence.verifier
    sampler, target = options.sampler, sequence.target
    if type(sampler) is not Sampling or not sampler.only_temperature:
        return None
    if type(sequence.rng) is not Rng:
        return None
    if options.logprobs is not None or options.bound is not None or not follows_draws(verifier):
        return None
    if not sequence.drafter.draws <= verifier.exact_for or not isinstance(target, StepModel):
        return None
    return target.stepper(sequence.session, sequence.rng.next_draw[0], sampler.temperature)
