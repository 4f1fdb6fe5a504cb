"""Guesses of several sources merged in C++; see drafting.h."""

import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import library

MOST_ORDER = 4  # tokens of context
SUFFIX, N_GRAMS, PRIOR = range(3)
"""The sources that the library knows."""


class CDraftingSettings(Structure):
    """``DraftingSettings`` of drafting.h."""

    _fields_ = (
        ("sources", c_int32 * 3),
        *(
            (name, c_int32)
            for name in ("kinds", "suffix_kind", "suffix_longest", "suffix_shortest")
        ),
        *((name, c_int32) for name in ("n_gram_kind", "prior_kind")),
        ("prior_tokens", c_void_p),
        ("prior_probs", c_void_p),
        *((name, c_int64) for name in ("prior_known", "prior_ranks")),
        *((name, POINTER(c_double)) for name in ("log_weight", "before_evidence")),
        ("bucket_of", POINTER(c_int32)),
        *((name, c_int32) for name in ("buckets", "steps")),
        *((name, c_double) for name in ("rate", "strength", "decay", "floor")),
    )


class Tables:
    """N-gram tables, which several requests may share.

    Args:
        order: most tokens of context, at most ``MOST_ORDER``.
        fresh: weight of the newest row where a context was seen before.
        max_contexts: contexts kept of each length.
    """

    def __init__(self, order: int, fresh: float, max_contexts: int) -> None:
        compiled = library.library()
        self.handle = compiled.draftwood_tables_new(order, fresh, max_contexts)
        weakref.finalize(self, compiled.draftwood_tables_free, self.handle).atexit = False


class Costs:
    """What runs cost, and room for the trees that are grown by it.

    Args:
        costs: seconds of a step with 0, 1, 2, ... guesses.
        slopes: for each number of guesses the least that a further one costs, the last infinite.
    """

    def __init__(self, costs: Sequence[float], slopes: Sequence[float]) -> None:
        self.costs, self.slopes = library.doubles(costs), library.doubles(slopes)
        size = len(costs)
        self.tokens, self.parents, self.chances = (
            (c_int64 * size)(),
            (c_int64 * size)(),
            (c_double * size)(),
        )


class Drafting:
    """What one request has shown, and the guesses made of it.

    Args:
        settings: sources and their prior; kept in memory with all that they point to.
        tables: where n-grams are among the sources.
    """

    def __init__(self, settings: CDraftingSettings, tables: Tables | None) -> None:
        self.library = library.library()
        self._kept = (settings, tables)
        self.handle = self.library.draftwood_drafting_new(
            byref(settings), tables.handle if tables else None
        )
        weakref.finalize(self, self.library.draftwood_drafting_free, self.handle).atexit = False

    def grow(
        self, root: int, costs: Costs, draw: tuple[int, int] | None, room: int
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and chances of acceptance of a tree below ``root``, in falling order of
        the chances.

        Args:
            root: the newest token.
            costs: of runs over such trees.
            draw: key and number of the draw that decides about the root's children; None for greedy
                texts.
            room: most guesses in a row.
        """
        key, place = draw or (0, 0)
        count = self.library.draftwood_drafting_grow(
            self.handle,
            root,
            *(costs.costs, costs.slopes),
            *(draw is not None, key, place, room),
            *(costs.tokens, costs.parents, costs.chances),
        )
        return costs.tokens[:count], costs.parents[:count], costs.chances[:count]

    def proposers(self, size: int) -> list[int]:
        """For the first ``size`` nodes of the last tree which sources proposed them, as bits."""
        bits = (c_int32 * size)()
        self.library.draftwood_drafting_proposers(self.handle, size, bits)
        return bits[:]

    def learn(
        self,
        tokens: Int[Tensor, " nodes"],
        parents: Int[Tensor, " nodes"],
        path: Sequence[int],
        rows: tuple[Int[Tensor, "nodes ranks"], Float[Tensor, "nodes ranks"]] | None,
    ) -> None:
        """Take in what a run said.

        Args:
            tokens: of its nodes, 64-bit integers on the CPU.
            parents: likewise.
            path: nodes that are now text.
            rows: the likeliest successors of each node and their probabilities; None takes in the
                path alone.
        """
        numbers = library.integers(path)
        best, probs, ranks = (None, None, 0)
        if rows is not None:
            best, probs, ranks = rows[0].data_ptr(), rows[1].data_ptr(), rows[0].shape[1]
        self.library.draftwood_drafting_learn(
            self.handle,
            tokens.data_ptr(),
            parents.data_ptr(),
            len(tokens),
            numbers,
            len(path),
            best,
            probs,
            ranks,
        )
