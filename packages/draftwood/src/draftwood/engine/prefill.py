"""Prefill: run the prompt in chunks before the first draft."""

from collections import abc
from typing import TYPE_CHECKING

from draftwood.drafters.drafter import VerifiedTree
from draftwood.engine.executors.executor import Stopwatch, TextHolder
from draftwood.engine.task import StepBudget
from draftwood.models.fingerprint import require_own_session
from draftwood.models.model import (
    CHUNK,
    Keep,
    Model,
    ModelInput,
    ModelOutput,
    ModelSession,
    PromptInput,
)
from draftwood.models.requirements import block_cache
from draftwood.sampling import require_probs
from draftwood.stats import Step
from draftwood.tree import DraftTree

if TYPE_CHECKING:
    from draftwood.engine.logprobs import PromptLogprobs
    from draftwood.engine.sequence import Sequence

LEAST_ROWS = 40
"""Rows of a tree for which the cache keeps blocks before the tree is known; more where the drafter
says how large its trees become.
"""


class Prefill(TextHolder):
    """Runs the prompt of a text in chunks before its first draft; implements ``Executor``.

    A text that was preempted is run again from its beginning, its answer included.

    Args:
        text: whose tokens before the root are run.

    Attributes:
        session: of the target, once it was started.
        asked: the chunk that was planned last.
        logprobs: where the prompt's log-probabilities are wanted.
        reused: tokens of the prompt that were in the cache.
        is_alone: whether no other answer copies what it computes.
        tree_rows: for which the cache keeps blocks, the root's among them.
        promised: blocks that the trees of others take in the same pass, which do not give way.
        rerun_seconds: of passes over a text that was preempted, until a step tells them.
    """

    def __init__(self, text: "Sequence") -> None:
        super().__init__(text)
        self.tokens = text.context.tokens
        self.session: ModelSession | None = None
        self.asked: PromptInput | None = None
        self.logprobs: PromptLogprobs | None = None
        self.reused = self.promised = 0
        self.is_alone = True
        self.rerun_seconds = 0.0
        self._counted = 0  # blocks that were wanted before the start
        self._is_undercounted = False
        self._learnt = 0  # tokens that the drafter knows
        self._seconds: dict[str, float] = {}  # by phase so far
        self.cache = block_cache(text.target)
        self.tree_rows = max(LEAST_ROWS, 1 + text.drafter.most_nodes)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return 0 if self.session is None else self.session.length

    @property
    def left(self) -> int:
        """Tokens that are yet to be run."""
        return len(self.tokens) - self.length

    @property
    def wants(self) -> int:
        """Blocks of the cache that these and the next tree may take.

        Those with which the prompt begins count where no other text has them. Without room for a
        tree behind it, a text would be run again only to give way once more.
        """
        if self.cache is None or self.cache.free_blocks is None:
            return 0
        rows = self.left + self.tree_rows
        if self.session is None or not self.session.length:
            return self.cache.blocks_for(rows) + self.cache.beside - self._shared_blocks
        return self.session.wants(rows)

    @property
    def _shared_blocks(self) -> int:
        """Blocks of others with which a session without tokens will begin."""
        options = self.text.options
        if self.logprobs is not None or options.prefixes is None:
            return 0
        if self.session is not None and not self._looks_again:
            return 0
        return options.prefixes.shared_blocks(self.tokens, options.salt)

    @property
    def _looks_again(self) -> bool:
        """True if the prompt may go on behind what other texts have computed since it began."""
        return self.logprobs is None and self.is_alone and not self.text.draft.needs_prompt

    @property
    def has_tree_room(self) -> bool:
        """True unless the cache has a limit, within which the next tree may not fit.

        Tasks that share a cache give way to each other before; what is left is short for one alone.
        """
        free = None if self.cache is None else self.cache.free_blocks
        return free is None or self.wants + self.promised <= free

    def start(self, with_prefix: bool) -> ModelSession:
        """Start a session, which begins with what is known of the prompt.

        Raises:
            ValueError: for a store of prefixes of another model.
        """
        options, target = self.text.options, self.text.target
        if options.prefixes is None:
            self.session = target.start()
            return self.session
        tokens = self.tokens if with_prefix else self.tokens[:1]  # nothing is known of one token
        self._counted = self.wants
        session, self.reused = options.prefixes.start(tokens, options.salt)
        try:
            require_own_session(session, target)
        except ValueError:
            session.close()
            raise
        self.session = session
        return session

    def know(self, count: int) -> None:
        """Leave out so many of the first tokens, unless the drafter wants to see them run."""
        self.reused = count
        if count and self.text.draft.needs_prompt:
            assert self.session is not None  # it was started
            self.session.clear()
            self.reused = 0
            self._is_undercounted = self.wants > self._counted
        elif count:
            self._learn(self.tokens[:count], None)

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        """Run the next tokens, as many as there is time for.

        A token is drawn behind the last one, but where the text was preempted after its first
        token; then the drafter knows all of it. Nothing is run where the drafter wants to see
        tokens whose blocks were counted as those of others: they are counted again first.
        """
        assert self.session is not None  # it was started
        if self._is_undercounted:
            self._is_undercounted = False
            return []
        self._look_again()
        draws = self.text.root < 0
        most = CHUNK if self.logprobs is None else self.logprobs.chunk
        start, stop = self.length, self.length + min(budget.prompt_rows, most, self.left)
        known = not draws or start < self._learnt
        if draws and known:
            stop = min(stop, self._learnt)
        keep: Keep = "last" if draws and stop == len(self.tokens) else "none"
        hidden: tuple[int, ...] = ()
        if not known:
            reads = self.text.draft.reads
            keep, hidden = "all" if reads.logits else keep, reads.hidden
        self.asked = PromptInput(self.session, self.tokens[start:stop], keep, hidden)
        return [self.asked if self.logprobs is None else self.logprobs.asked(self.asked)]

    def _look_again(self) -> None:
        """Go on behind what other texts have computed of the prompt meanwhile."""
        text, prefixes = self.text, self.text.options.prefixes
        if prefixes is None or self.asked is None or not self._looks_again:
            return  # before the first chunk, ``start`` has asked
        assert self.session is not None  # a chunk of it was run
        before = self.session.length
        found = prefixes.go_on(self.session, self.tokens, text.options.salt)
        if found > before and text.root < 0:
            self.reused += found - before
            if found > self._learnt:
                self._learn(self.tokens[self._learnt : found], None)

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        assert self.session is not None  # plan came before
        assert self.asked is not None
        chunk, output = self.asked.tokens, outputs[0]
        start = self.session.length - len(chunk)
        if self.logprobs is not None:
            output = self.logprobs.read(self.asked, start, output)
        return self.read(chunk, start, output, seconds)

    def read(
        self, chunk: abc.Sequence[int], start: int, output: ModelOutput, seconds: float
    ) -> abc.Sequence[Step]:
        """Learn what came of a chunk; draw the first token behind the last one, else give nothing.

        Args:
            start: place of its first token.
            seconds: that running it took.
        """
        text = self.text
        if text.root >= 0:
            self.rerun_seconds += seconds
            return []
        watch = Stopwatch(self._seconds)
        watch.seconds["target"] += seconds
        if start >= self._learnt:
            self._learn(chunk, output if text.draft.reads else None)
        watch.lap("draft")
        self._seconds = watch.seconds
        if start + len(chunk) < len(text.prompt):
            return []
        self.remember()
        sampler = text.options.sampler
        logits = output.rows[-1:]
        probs = sampler.probs(logits, [text.context] if sampler.reads_context else [])[0]
        require_probs(probs, logits[0], place=1)
        root = text.rng.draw(probs)
        watch.lap("verify")
        return [text.begin(root, watch.seconds, logits)]

    def remember(self) -> None:
        """Keep what the session has computed for later prompts.

        A text that the garbage collector ends has given its blocks back already. In a cache that is
        full the last block, unless it is whole, stays the text's own: one that is kept is copied
        before more is written there.
        """
        if (text := self._text()) is None:
            return
        options, length = text.options, self.length
        if self.cache is not None and self.cache.free_blocks == 0:
            blocks_for = self.cache.blocks_for
            while blocks_for(length + 1) == blocks_for(length):
                length -= 1
        if options.prefixes is not None and self.session is not None and length:
            options.prefixes.remember(self.session, self.tokens[:length], options.salt)

    def preempt(self) -> None:
        """Give the cache back; the text and what drafts it stay as they are.

        A prompt under way begins again, and so does the count of what is known of it.
        """
        if self.session is not None:
            self.session.clear()
        if self.text.root < 0:
            self.reused = 0

    def told_by(self, steps: abc.Sequence[Step]) -> abc.Sequence[Step]:
        """Count seconds of passes that were run again to the first step after them, if any."""
        if steps and self.rerun_seconds:
            steps[0].seconds["target"] += self.rerun_seconds
            self.rerun_seconds = 0.0
        return steps

    def close(self) -> None:
        """Nothing is held that the text does not close."""

    def _learn(self, tokens: abc.Sequence[int], output: ModelOutput | None) -> None:
        chain = DraftTree.chain(list(tokens))
        self.text.draft.update(VerifiedTree(chain, range(len(tokens)), output))
        self._learnt += len(tokens)


def context_limit(target: Model, most: int | None) -> int | None:
    """Most tokens of a text: the model's context, or fewer where fewer are asked for; None for no
    limit.
    """
    return min((each for each in (target.context_length, most) if each is not None), default=None)


def check_prompt(prompt: abc.Sequence[int], target: Model, most: int | None) -> None:
    """Raise ValueError for a prompt that a model cannot run, or that leaves no room in its context.

    Args:
        most: tokens of the text that are asked for, as ``context_limit`` takes them.
    """
    if not prompt:
        raise ValueError(
            "the prompt has no tokens; give at least one, for instance the model's begin-of-text"
            " token"
        )
    vocab, own = target.vocab_size, target.context_length
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise ValueError(
            f"the prompt has token ids outside 0..{vocab - 1}: it was made for another model"
        )
    if own is not None and len(prompt) >= own:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens and the model's context is {own}; shorten the"
            f" prompt to at most {own - 1} tokens"
        )
    if most is not None and len(prompt) >= most:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens, and the option context keeps prompt and answer"
            f" to {most}; raise it above {len(prompt)}"
        )
