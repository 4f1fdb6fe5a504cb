"""Blocks of a list's texts, walked through by the loop's own steps without a pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from draftwood_diffusion.block_state import BlockState, Seen
from draftwood_diffusion.blocks import BlockPlace
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.stepping import Stepping
from draftwood_diffusion.unmasking import Unmasking


@dataclass(frozen=True, eq=False)
class Unwritten:
    """Texts of a list behind a prompt, to be written by a method.

    Attributes:
        listed: texts, the prompt included.
        prompt: tokens with which all of them begin.
        method: rule, blocks and revision; lookahead changes nothing.
        block_length: of the model.
        order: [places] of the text behind the prompt, as a seed gives it.
    """

    listed: ListedTexts
    prompt: tuple[int, ...]
    method: Unmasking
    block_length: int
    order: Float[np.ndarray, " places"]

    def begin(self, written: Sequence[int], seen: Seen | None = None) -> "Point":
        """The point at the beginning of a block, behind the tokens that are written."""
        start, total = len(written), self.listed.places
        place = BlockPlace(start, len(self.prompt), total, len(self.prompt), self.block_length)
        end = self.method.blocks.end(place)
        order = self.order[start - len(self.prompt) : end - len(self.prompt)]
        stepping = Stepping(self.method, frozenset(), 0, order)
        masks = (self.listed.mask,) * (end - start)
        state = BlockState(masks, self.listed.mask, is_last=end == total)
        point = Point(self, tuple(written), stepping, state)
        kept = self.method.blocks.kept(stepping.view(state, point.seen()), place)
        return replace(point, state=state.first(kept, state.is_last and kept == len(masks)))


@dataclass(frozen=True, eq=False)
class Point:
    """A block under way behind what is written.

    Attributes:
        of: the texts and the method.
        written: tokens before the block.
        stepping: of the block.
        state: of the block.
        runs: passes so far.
    """

    of: Unwritten
    written: tuple[int, ...]
    stepping: Stepping
    state: BlockState
    runs: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Tokens, masks, and passes over a written block: all that a step depends on where the rule
        remembers nothing.
        """
        return self.written, self.state.tokens, self.state.rereads

    @property
    def is_over(self) -> bool:
        """True if the whole text is written."""
        return len(self.written) == self.of.listed.places

    def seen(self, drawn: Int[np.ndarray, " places"] | None = None) -> Seen:
        """Ask an exact model about the block; draws are those given."""
        listed, start = self.of.listed, len(self.written)
        known = np.full(listed.places, listed.mask)
        known[:start] = self.written
        known[start : start + len(self.state.tokens)] = self.state.tokens
        probs = listed.marginals(known)[start : start + len(self.state.tokens)]
        nothing = np.full(len(probs), -1) if drawn is None else drawn
        return Seen(probs, nothing)

    def choice(self, seen: Seen) -> Int[np.ndarray, " chosen"]:
        """Places that the rule fixes now."""
        return self.stepping.chosen(self.stepping.view(self.state, seen))

    def after(self, seen: Seen) -> "Point":
        """The point after a pass: in this block, or at the beginning of the next one."""
        state = self.stepping(self.state, seen)
        runs = self.runs + 1
        if not self.stepping.ends_block(state):
            return replace(self, state=state, runs=runs)
        written = (*self.written, *state.tokens)
        if len(written) == self.of.listed.places:
            return replace(self, written=written, state=state.first(0, True), runs=runs)
        return replace(self.of.begin(written), runs=runs)


def along(unwritten: Unwritten, text: Sequence[int]) -> Iterator[tuple[Point, Seen]]:
    """Points of the one way in which a method writes a text, and what each pass says."""
    point = unwritten.begin(unwritten.prompt)
    while not point.is_over:
        start = len(point.written)
        own = np.array(text[start : start + len(point.state.tokens)])
        seen = point.seen(own)
        yield point, seen
        point = point.after(seen)
