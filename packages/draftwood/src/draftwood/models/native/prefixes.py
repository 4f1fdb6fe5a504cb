"""Committed texts whose blocks of the cache serve later prompts that begin alike."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.models.cache.blocks import BlockPool
from draftwood.models.cache.places import PLACES
from draftwood.models.fingerprint import Fingerprint, require_own_session
from draftwood.models.model import ModelSession
from draftwood.models.native import NativeModel
from draftwood.models.session import PooledSession

Before = int | str
"""Number of the block before another one, or the salt of a text before its first."""

Key = tuple[Before, tuple[int, ...]]
"""Number or salt before a block, and its tokens, fewer at a text's end."""


@dataclass(frozen=True)
class _Kept:
    number: int
    block: int


class Prefixes:
    """Blocks of texts on one model, found by all the tokens up to their end (Kwon et al. 2023,
    arXiv:2309.06180).

    A block is known by its own tokens and by the block before it, which are compared themselves and
    not their hashes alone. A prompt that goes on otherwise within a block, or ends there, begins
    with the tokens that are alike, and its session gets a copy of the block before it writes there.
    Texts with different salts never share a block, so that nobody learns from the time that a
    prompt takes what others have asked. Where the pool needs blocks, those go first that were not
    asked for longest.

    Several threads may use it.

    Args:
        model: whose pool gives blocks back through this store. A pool has one store: what an
            earlier one keeps is given back, and it keeps nothing more. Texts of other models, known
            by their fingerprints, are refused.

    Raises:
        ValueError: for a model whose cache has no blocks.
    """

    def __init__(self, model: NativeModel) -> None:
        if not isinstance(getattr(model, "pool", None), BlockPool):
            raise ValueError(
                "a prefix store keeps blocks of a cache, as models on the native path have them,"
                f" and {type(model).__name__} has none; load the model natively, on a CPU with a"
                " C++ compiler, or leave prefixes out"
            )
        self.model = model
        self.pool: BlockPool = model.pool
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()  # a block comes before the one above it
        # blocks by what comes before them and their first token
        self._behind: dict[tuple[Before, int], set[Key]] = {}
        self._numbers = 0
        if self.pool.holder is not None:
            self.pool.holder.clear()
        self.pool.holder = self

    @classmethod
    def of(cls, model: Any) -> "Prefixes | None":
        """The store that a model's pool has, else a new one; None for a cache without blocks."""
        pool = getattr(model, "pool", None)
        if not isinstance(pool, BlockPool):
            return None
        return pool.holder if isinstance(pool.holder, cls) else cls(model)

    @property
    def fingerprint(self) -> Fingerprint:
        """Tells which model's texts these are."""
        return Fingerprint.of(self.model)

    def __len__(self) -> int:
        """Blocks that are kept."""
        return len(self._kept)

    def start(self, prompt: Sequence[int], salt: str = "") -> tuple[PooledSession, int]:
        """A session that begins with as much of a prompt as is known; how many tokens these are.

        The prompt's last token is never among them, as its logits are wanted.
        """
        session = self.model.start()
        with self.pool.lock:
            keys, last, alike = self._beginning(prompt, salt)
            length = PLACES * len(keys)
            if last is not None and self._has_room([*keys, last], len(prompt)):
                keys.append(last)
            else:
                alike = 0
            blocks = [self._kept[key].block for key in keys]
            known = self.pool.sure_until(blocks, length + alike)
            if known < length + alike:
                self.pool.branch(session.slot, length)
                whole = keys[: length // PLACES]
                keys, known = self._with_memory(whole, known, prompt[:-1], salt)
                blocks = [self._kept[key].block for key in keys]
            session.begin(blocks[: self.pool.blocks_for(known)], known)
            self._touch(keys)
        return session, known

    def shared_blocks(self, prompt: Sequence[int], salt: str = "") -> int:
        """Blocks that a prompt need not take to begin with what is known, as sequences have them.

        One less where it takes another for as long as it has not copied the tokens that are alike.
        """
        with self.pool.lock:
            keys, last, _ = self._beginning(prompt, salt)
            shared = sum(not self.pool.is_spare(self._kept[key].block) for key in keys)
            copied = last is not None and self.pool.is_spare(self._kept[last].block)
        return max(0, shared - copied)

    def go_on(self, session: ModelSession, prompt: Sequence[int], salt: str = "") -> int:
        """Let a session in a prompt go on behind whole blocks that became known since ``start``;
        gives its length.
        """
        with self.pool.lock:
            keys = self._known(prompt[: len(prompt) - 1], salt)
            if isinstance(session, PooledSession) and PLACES * len(keys) > session.length:
                blocks, length = [self._kept[key].block for key in keys], PLACES * len(keys)
                if self.pool.sure_until(blocks, length) < length:
                    return session.length
                session.begin(blocks, length)
                self._touch(keys)
        return session.length

    def remember(self, session: ModelSession, tokens: Sequence[int], salt: str = "") -> None:
        """Keep the blocks of a session's first tokens, which are these.

        Raises:
            ValueError: for more tokens than the session has, or a session of another model or in
                another cache.
        """
        require_own_session(session, self.model)
        if not isinstance(session, PooledSession) or (
            session.model.pool is not self.pool or len(tokens) > session.length
        ):
            raise ValueError(
                f"a session in this store's cache with at least {len(tokens)} tokens is wanted,"
                f" this one has {session.length}; begin sessions with the store's start"
            )
        with self.pool.lock:
            if self.pool.holder is not self:
                return
            keys = self._known(tokens, salt)
            for index, key in enumerate(keys):
                self._replace(key, session.slot, index)
            before = self._before(keys, salt)
            for index in range(len(keys), self.pool.blocks_for(len(tokens))):
                key = (before, _block(tokens, index))
                longer, alike = self._most_alike(*key)
                if longer is not None and alike == len(key[1]):
                    key = longer  # which holds what the end of this text does
                else:
                    block = self.pool.hold(session.slot, index)
                    if block is None:
                        break
                    self._keep(key, block)
                keys.append(key)
                before = self._kept[key].number
            self._touch(keys)

    def clear(self) -> None:
        """Give all blocks back."""
        with self.pool.lock:
            for kept in self._kept.values():
                self.pool.release_block(kept.block)
            self._kept.clear()
            self._behind.clear()

    def _beginning(self, prompt: Sequence[int], salt: str) -> tuple[list[Key], Key | None, int]:
        """Find the whole blocks with which a prompt begins, the one behind them that begins with
        most of what follows, and how many tokens these are.
        """
        known = prompt[: len(prompt) - 1]
        keys = self._known(known, salt)
        rest = known[PLACES * len(keys) :]
        return keys, *self._most_alike(self._before(keys, salt), rest)

    def _known(self, tokens: Sequence[int], salt: str) -> list[Key]:
        """Keys of the blocks of these tokens, as far as all are there."""
        keys: list[Key] = []
        before: Before = salt
        for index in range(len(tokens) // PLACES):
            key = (before, _block(tokens, index))
            kept = self._kept.get(key)
            if kept is None:
                break
            keys.append(key)
            before = kept.number
        return keys

    def _before(self, keys: Sequence[Key], salt: str) -> Before:
        """Find what comes before the block behind these."""
        return self._kept[keys[-1]].number if keys else salt

    def _most_alike(
        self, before: Before, tokens: Sequence[int], with_memory: bool = False
    ) -> tuple[Key | None, int]:
        """Find the block behind this one, or the first, that begins with most of the tokens, and
        how many these are; None where none begins so.

        Args:
            with_memory: look among those that have one.
        """
        best, most = None, 0
        for key in self._behind.get((before, tokens[0]), ()) if tokens else ():
            alike = _alike(key[1], tokens)
            has_memory = not with_memory or self.pool.has_memory(self._kept[key].block)
            if alike > most and has_memory:
                best, most = key, alike
        return best, most

    def _with_memory(
        self, keys: list[Key], known: int, tokens: Sequence[int], salt: str
    ) -> tuple[list[Key], int]:
        """Find the blocks behind which most of the tokens are known of which a pass may begin.

        Args:
            keys: of the whole blocks with which the tokens begin.
            known: tokens behind which a pass may begin in these.
        """
        for count in range(len(keys), known // PLACES - 1, -1):
            before, rest = self._before(keys[:count], salt), tokens[count * PLACES :]
            last, alike = self._most_alike(before, rest, with_memory=True)
            if last is not None and count * PLACES + alike > known:
                return [*keys[:count], last], count * PLACES + alike
        return keys, known

    def _has_room(self, keys: Sequence[Key], length: int) -> bool:
        """True if the pool can copy the last of these blocks and go on to so many tokens."""
        free = self.pool.free_blocks
        spare = sum(self.pool.is_spare(self._kept[key].block) for key in keys)
        wanted = self.pool.blocks_for(length + 1) - (len(keys) - 1)
        return free is None or free - spare >= wanted

    def _keep(self, key: Key, block: int) -> None:
        """Keep a block in the place of those that hold less of the same text, but for those from
        which alone texts go on.
        """
        before, tokens = key
        siblings = self._behind.get((before, tokens[0]), ())
        for other in [each for each in siblings if each[1] == tokens[: len(each[1])]]:
            if not self.pool.has_memory(self._kept[other].block) or self.pool.has_memory(block):
                self._forget(other)
        self._behind.setdefault((before, tokens[0]), set()).add(key)
        self._numbers += 1
        self._kept[key] = _Kept(self._numbers, block)

    def _replace(self, key: Key, slot: int, index: int) -> None:
        """Keep a slot's block in the place of the same one where it alone has a memory."""
        kept, own = self._kept[key], self.pool.blocks_of(slot)[index]
        if self.pool.has_memory(own) and not self.pool.has_memory(kept.block):
            block = self.pool.hold(slot, index)
            if block is not None:
                self.pool.release_block(kept.block)
                self._kept[key] = _Kept(kept.number, block)

    def _forget(self, key: Key) -> None:
        """Give a block back."""
        self.pool.release_block(self._kept.pop(key).block)
        before, tokens = key
        siblings = self._behind[before, tokens[0]]
        siblings.remove(key)
        if not siblings:
            del self._behind[before, tokens[0]]

    def _touch(self, keys: Sequence[Key]) -> None:
        """These were asked for last, later blocks of a text before earlier ones."""
        for key in reversed(keys):
            self._kept.move_to_end(key)

    def evict(self, count: int) -> None:
        """Give up to so many blocks back that no session has; the pool's lock is held.

        Whoever asks for a block asks for all before it too, so the last of a text go first. One
        that stays behind, since a session has it, is never found again and goes in its turn.
        """
        for key, kept in list(self._kept.items()):
            if count <= 0:
                return
            if self.pool.is_spare(kept.block):
                self._forget(key)
                count -= 1


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the first tokens that are the same."""
    both = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in both if a != b), min(len(one), len(other)))


def _block(tokens: Sequence[int], index: int) -> tuple[int, ...]:
    return tuple(tokens[index * PLACES : (index + 1) * PLACES])
