"""The step of a block: a view for the rule, places that are fixed, tokens that change."""

from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from draftwood_diffusion.block_state import BlockState, Seen
from draftwood_diffusion.unmasking import Unmasking
from draftwood_diffusion.view import View


@dataclass(frozen=True, eq=False)
class Stepping:
    """Steps of one block.

    Attributes:
        method: of the text.
        ends: tokens that end it.
        given: places of the prompt at the block's beginning, which never change.
        order: [places], a number of each place from the seed.
        reference: [places] of the text that will be written, where it is known.
        next_places: of the block behind this one; 0 where it cannot run beside it.
    """

    method: Unmasking
    ends: Set[int]
    given: int
    order: Float[np.ndarray, " places"]
    reference: Int[np.ndarray, " places"] | None = None
    next_places: int = 0

    def view(self, state: BlockState, seen: Seen) -> View:
        """The block as the rule sees it."""
        tokens, size = np.array(state.tokens), len(state.tokens)
        reference = None if self.reference is None else self.reference[:size]
        return View(
            *(tokens, tokens == state.mask, seen.probs[:size], self.order[:size]),
            *(state.history, reference),
        )

    def __call__(self, state: BlockState, seen: Seen) -> BlockState:
        """The next state.

        Raises:
            ValueError: for a rule that names no place, or one that is not open.
        """
        view, method = self.view(state, seen), self.method
        tokens = view.tokens.copy()
        chosen = self.chosen(view)
        changed = method.revision.changes(view)
        changed = changed[changed >= self.given]
        tokens[chosen] = seen.drawn[chosen]
        tokens[changed] = view.predictions[changed]
        history = (*state.history, replace(view, history=()))
        remembered = history[max(0, len(history) - method.rule.remembers) :]
        after = replace(state, tokens=tuple(tokens.tolist()), history=remembered)
        after = replace(after, rereads=self._rereads(state, after))
        if method.blocks.cuts_ends and (end := self.first_end(after)) is not None:
            return after.first(end + 1, is_last=True)
        return after

    def chosen(self, view: View) -> Int[np.ndarray, " chosen"]:
        """Places that the rule fixes now; none where nothing is open."""
        rule = self.method.rule
        return checked(rule.name, rule.choose(view), view) if len(view.open) else view.open

    def _rereads(self, state: BlockState, after: BlockState) -> int:
        """Passes over the written block so far; all there are where the newest changed no text."""
        if not (state.is_written or self.is_over(state)):
            return state.rereads
        texts = [each.tokens[: self.first_end(each)] for each in (state, after)]
        most = self.method.revision.passes_on_written
        return most if texts[0] == texts[1] else state.rereads + 1

    def first_end(self, state: BlockState) -> int | None:
        """Place of the first end token that is written behind the prompt."""
        places = range(self.given, len(state.tokens))
        return next((place for place in places if state.tokens[place] in self.ends), None)

    def is_over(self, state: BlockState) -> bool:
        """True if an end token is written and every place before it."""
        end = self.first_end(state)
        return end is not None and state.mask not in state.tokens[:end]

    def with_next(self, state: BlockState) -> BlockState | None:
        goes_on = self.next_places and self.ends_block(state) and not self.is_over(state)
        return replace(state, next_masks=self.next_places) if goes_on else None

    def ends_block(self, state: BlockState) -> bool:
        """True if the block is written, and the revision takes no further pass over it."""
        most = self.method.revision.passes_on_written
        return (state.is_written or self.is_over(state)) and state.rereads >= most


def checked(
    name: str, chosen: Int[np.ndarray, " chosen"], view: View
) -> Int[np.ndarray, " chosen"]:
    """Return the places that a rule chose.

    Raises:
        ValueError: where it chose none, or one that is written already or no place at all.
    """
    chosen = np.asarray(chosen, np.int64)
    if chosen.ndim != 1 or not len(chosen):
        raise ValueError(
            f"rule {name!r} fixed no place; a rule names at least one of the {len(view.open)} open"
            " ones in every pass"
        )
    wrong = np.setdiff1d(chosen, view.open)
    if len(wrong):
        raise ValueError(
            f"rule {name!r} fixed place {wrong[0]}, which is not open; it may name"
            f" {view.open.tolist()}"
        )
    return chosen
