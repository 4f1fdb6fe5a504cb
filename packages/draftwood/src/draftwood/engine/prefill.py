"""What of a text is to be computed before its next tree."""

from collections.abc import Sequence

from draftwood.engine.options import Options
from draftwood.interfaces.drafter import DraftSession, Reads, VerifiedTree
from draftwood.interfaces.fingerprint import require_own_session
from draftwood.interfaces.model import (
    CHUNK,
    BlockCache,
    Keep,
    Model,
    ModelSession,
    Output,
    PromptInput,
)
from draftwood.tree import DraftTree

MOST_ROWS = 40
"""Of a tree, as far as room in the cache is kept for it before it is known."""


class Prefill:
    """Brings a session up to its text: to the prompt, or to all of it where it gave way.

    Args:
        target: whose session it is.
        tokens: of the text before the root, which grow.
        options: say which prefixes are known.

    Attributes:
        reused: tokens of the prompt that were in the cache.
    """

    def __init__(self, target: Model, tokens: list[int], options: Options) -> None:
        self.target, self.tokens, self.options = target, tokens, options
        self.session: ModelSession | None = None
        self.reused = 0
        self._learnt = 0  # tokens that the drafter knows
        pool = getattr(target, "pool", None)
        self.cache = pool if isinstance(pool, BlockCache) else None

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
        """Blocks of the cache that these, or the next tree, may take."""
        if self.cache is None or self.cache.limit is None:
            return 0
        if self.session is None or not self.session.length:
            return self.cache.blocks_for(self.left)
        return self.session.wants(self.left or MOST_ROWS)

    def start(self, with_prefix: bool) -> ModelSession:
        """A session, which begins with what is known of the prompt.

        Raises:
            ValueError: for a store of prefixes of another model.
        """
        if self.options.prefixes is None:
            self.session = self.target.start()
            return self.session
        tokens = self.tokens if with_prefix else self.tokens[:1]  # nothing is known of one token
        session, self.reused = self.options.prefixes.start(tokens, self.options.salt)
        try:
            require_own_session(session, self.target)
        except ValueError:
            session.close()
            raise
        self.session = session
        return session

    def know(self, draft: DraftSession, count: int) -> None:
        """So many of the first tokens need not be run; the drafter may want to see them though."""
        self.reused = count
        if count and draft.needs_prompt:
            assert self.session is not None  # it was started
            self.session.clear()
            self.reused = 0
        elif count:
            self._learn(draft, self.tokens[:count], None)

    def chunk(self, most: int, reads: Reads, draws: bool) -> PromptInput:
        """The next tokens to run, at most so many.

        Args:
            reads: what the drafter reads of them, unless it did before.
            draws: whether a token is drawn behind the last one; it is not where the text gave way
                after its first token, and then the drafter knows all of it.
        """
        assert self.session is not None  # it was started
        start, stop = self.length, self.length + min(most, CHUNK, self.left)
        known = not draws or start < self._learnt
        if draws and known:
            stop = min(stop, self._learnt)
        keep: Keep = "last" if draws and stop == len(self.tokens) else "none"
        if known:
            return PromptInput(self.session, self.tokens[start:stop], keep)
        keep = "all" if reads.logits else keep
        return PromptInput(self.session, self.tokens[start:stop], keep, reads.hidden)

    def take(self, draft: DraftSession, chunk: Sequence[int], start: int, output: Output) -> None:
        """Let the drafter learn a chunk that began at this place, unless it knows it."""
        if start >= self._learnt:
            self._learn(draft, chunk, output if draft.reads else None)

    def remember(self) -> None:
        """Keep what the session has computed for later prompts."""
        if self.options.prefixes is not None and self.session is not None and self.length:
            tokens = self.tokens[: self.length]
            self.options.prefixes.remember(self.session, tokens, self.options.salt)

    def preempt(self) -> bool:
        """Give the cache back; the text and what drafts it stay as they are."""
        if self.session is None or not self.session.length:
            return False
        self.session.clear()
        return True

    def _learn(self, draft: DraftSession, tokens: Sequence[int], output: Output | None) -> None:
        chain = DraftTree.chain(list(tokens))
        draft.update(VerifiedTree(chain, range(len(tokens)), output))
        self._learnt += len(tokens)


def check_prompt(prompt: Sequence[int], vocab: int, limit: int | None) -> None:
    """Raise ValueError for a prompt that a model cannot run, or that leaves no room in its
    context.
    """
    if not prompt:
        raise ValueError(
            "the prompt has no tokens; give at least one, for instance the model's begin-of-text"
            " token"
        )
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise ValueError(
            f"the prompt has token ids outside 0..{vocab - 1}: it was made for another model"
        )
    if limit is not None and len(prompt) >= limit:
        raise ValueError(
            f"the prompt has {len(prompt)} tokens and the model's context is {limit}; shorten the"
            f" prompt to at most {limit - 1} tokens"
        )
