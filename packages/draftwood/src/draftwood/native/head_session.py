"""Session of a head in C++ on one text; see head.h."""

from collections.abc import Sequence
from ctypes import byref, c_float, c_int64
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.arrays import Float, address_of, as_array
from draftwood.native import library, structures
from draftwood.native.threads import threads

if TYPE_CHECKING:
    from draftwood.native.head import SessionHead

MAX_RANKS = 64
"""Most successors of a row that are asked for."""
MAX_ROWS = 64
"""Most rows of a level."""


HeadStates = Sequence[Any]
"""The target's states [nodes dim] as a forward pass gives them, of each layer that a head reads."""


class HeadSession:
    """One text of a ``SessionHead``: its committed rows, and drafts behind them.

    Row t holds the target's states at place t and the token at place t + 1; of a head that reads
    tokens alone, the token at place t. Use it in one thread at a time.

    Attributes:
        handle: of the session in the library.
        found: what the last call found there.
    """

    def __init__(
        self, head: "SessionHead", ranks: int, temperature: float, key: int | None
    ) -> None:
        self.head = head
        self._library = library.library()
        self.handle = self._library.draftwood_head_new(byref(head.structure))
        library.freed_with(self, self._library.draftwood_head_free, self.handle, kept=head)
        self.found = structures.CSuccessors(
            ranks=ranks,
            is_drawn=key is not None and temperature > 0.0,
            temperature=temperature or 1.0,
            key=key or 0,
            tokens=(c_int64 * (MAX_ROWS * ranks))(),
            log_probs=(c_float * (MAX_ROWS * ranks))(),
        )
        self._ranks, self._rows = ranks, 0

    @property
    def length(self) -> int:
        """Committed rows."""
        return self._library.draftwood_head_committed(self.handle)

    def take(
        self,
        features: Any,
        tokens: Sequence[int],
        path: Sequence[int] | None = None,
        place: int = 0,
    ) -> None:
        """Append committed rows in place of the drafted ones; find successors of the last.

        Args:
            features: the target's states: those of all layers side by side [rows reads dim], or as
                a forward pass gives them; none for a head that reads tokens alone.
            tokens: the token behind each row; the last one is the newest of the text.
            path: rows of ``features`` that are taken, in order; None takes all.
            place: number of the next draw, the one behind the newest token.
        """
        odd = self._library.draftwood_head_take(
            *self.taken(features, tokens, path, place), threads()
        )
        self._check(odd, tokens)
        self._rows = 1

    def level(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Append drafted rows; find their successors.

        Args:
            parents: of each the drafted row that it follows, counted from 0 since the last
                ``take``; -1 for the last committed row. A head that reads tokens alone also takes
                rows of this call.
            tokens: of each.
        """
        count = len(tokens)
        if not 0 < count <= (MAX_ROWS if self._ranks else count) or len(parents) != count:
            raise ValueError(
                f"a level has 1 to {MAX_ROWS} tokens with a parent each, got {count} and"
                f" {len(parents)}"
            )
        odd = self._library.draftwood_head_level(
            self.handle,
            (c_int64 * count)(*parents),
            (c_int64 * count)(*tokens),
            count,
            self.found,
            threads(),
        )
        if odd >= 0 and 0 <= tokens[odd] < self.head.target_vocabulary:
            raise ValueError(f"row {parents[odd]} is not there to be drafted from; take() first")
        self._check(odd, tokens)
        self._rows = count

    def keep(self, length: int) -> None:
        """Drop drafted rows, and all committed rows from ``length`` on."""
        self._rows = 0
        self._library.draftwood_head_keep(self.handle, length)

    def copy(self, other: "HeadSession", length: int) -> None:
        """Take over the first ``length`` rows of another text of this head, in place of its own."""
        if other.head is not self.head or not 0 <= length <= other.length:
            raise ValueError(
                f"{length} rows must be among the {other.length} of a text of the same head"
            )
        self._rows = 0
        self._library.draftwood_head_copy(self.handle, other.handle, length)

    def logits(self) -> Float[np.ndarray, "rows draft_vocab"]:
        """View the logits of the draft vocabulary behind the rows of the last call.

        They are the library's memory, and stay until this session's next call.
        """
        width = self.head.vocab_size
        if not self._rows:
            return np.empty((0, width), np.float32)
        numbers = (c_float * (self._rows * width)).from_address(self.found.logits)
        return np.ctypeslib.as_array(numbers).reshape(self._rows, width)

    def taken(
        self,
        features: Any,
        tokens: Sequence[int],
        path: Sequence[int] | None = None,
        place: int = 0,
    ) -> tuple[object, ...]:
        """Arguments of the library's functions that take rows, as ``take`` has them."""
        is_whole = getattr(features, "ndim", 0) == 3
        layers = list(as_array(features).swapaxes(0, 1)) if is_whole else features
        head, count, given = self.head, len(tokens), structures.CFusionInput()
        if len(layers) != head.reads:
            raise ValueError(f"there must be states of {head.reads} layers, got {len(layers)}")
        if layers:
            rows = range(len(layers[0])) if path is None else path
            if not count or len(rows) != count:
                raise ValueError(
                    f"each of {count} tokens needs a row of the {len(layers[0])} states, got"
                    f" {len(rows)}"
                )
            given = given_states(layers, rows, head.width)
        elif not count:
            raise ValueError("each row needs a token, and there is none")
        self.found.place = place
        return self.handle, byref(given), library.integers(tokens), count, self.found

    def _check(self, odd: int, tokens: Sequence[int]) -> None:
        if odd >= 0:
            raise ValueError(
                f"token {tokens[odd]} is beyond the vocabulary of {self.head.target_vocabulary}"
            )


def given_states(states: HeadStates, rows: Sequence[int], hidden: int) -> structures.CFusionInput:
    """Describe states to the library, which reads float32 where it lies.

    Args:
        rows: of each array that are read.
        hidden: entries of a state.

    Raises:
        ValueError: for states of another size or form, and rows that are not there.
    """
    arrays: list[np.ndarray] = [as_array(each) for each in states]
    first = arrays[0]
    alike = all(each.shape == first.shape and each.strides == first.strides for each in arrays)
    if first.ndim != 2 or first.shape[1] != hidden or first.strides[1] != 4:
        alike = False
    if not alike or not 0 <= min(rows) <= max(rows) < len(first):
        raise ValueError(
            f"a head reads rows of {hidden} entries of the target's states in float32, got row"
            f" {max(rows)} of {[each.shape for each in arrays]}; take the model's own head"
        )
    given = structures.CFusionInput(
        features=library.integers([address_of(each) for each in arrays]),
        feature_rows=library.integers(rows),
        feature_stride=first.strides[0] // 4,
    )
    given.kept = arrays  # in memory as long as the structure
    return given
