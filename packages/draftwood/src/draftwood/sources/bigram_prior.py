"""Draft with what the target says after a single token, whatever text the token is in."""

import ctypes
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
from safetensors import SafetensorError, safe_open

from draftwood.arrays import Float, Int, address_of, as_array
from draftwood.models.model import Model, ModelSession, extend_in_chunks
from draftwood.models.verified import DraftRequest
from draftwood.native.rows import topk_probs
from draftwood.sources.source import Evidence, NativeSource
from draftwood.storage.safetensors import write_arrays
from draftwood.tree import DraftTree

PRIOR_RANKS = 24  # successors of a token; drawn draft tokens need more of them than chosen ones
LEAST_STAR, STAR = 8, 256  # tokens of a pass that measures a prior, at first and at most


class CBigramPriorSettings(ctypes.Structure):
    """``BigramPriorSettings`` of native/sources/bigram_prior.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "tokens", "probs")),
        *((name, ctypes.c_int64) for name in ("known", "ranks")),
    )


@dataclass(frozen=True, eq=False)
class BigramPrior:
    """A table of the target's likeliest successors of every token, computed once per model.

    It never changes. The bigrams of N-Grammys (Stewart et al. 2024, arXiv:2411.03786): where
    nothing was learnt yet of a token, what the model says after it in no context at all is right
    more often than silence. ``BigramPrior.of`` measures it.

    Args:
        ids: tokens whose successors are known; the others have none here.
        tokens: successors of each of them, likeliest first; -1 where there is none.
        probs: their probabilities.
        is_rough: whether other programs left time for a few tokens alone.

    Raises:
        ValueError: for tables of different shapes, or a token with two rows.
    """

    name: ClassVar[str] = "bigram-prior"
    reads_logits: ClassVar[bool] = False
    ids: Int[np.ndarray, " known"]
    tokens: Int[np.ndarray, "known ranks"]
    probs: Float[np.ndarray, "known ranks"]
    is_rough: bool = False

    def __post_init__(self) -> None:
        if self.tokens.shape != self.probs.shape or self.tokens.ndim != 2:
            shapes = f"{list(self.tokens.shape)} and {list(self.probs.shape)}"
            raise ValueError(f"tokens and probs must be tables of one shape, got {shapes}")
        if self.ids.shape != self.tokens.shape[:1] or len(np.unique(self.ids)) < len(self.ids):
            raise ValueError(f"{len(self.tokens)} rows need as many different ids")
        for name, kind in (("ids", np.int32), ("tokens", np.int32), ("probs", np.float32)):
            table = np.ascontiguousarray(as_array(getattr(self, name)), kind)
            object.__setattr__(self, name, table)

    @classmethod
    def of(
        cls,
        model: Model,
        before: Sequence[int] = (0,),
        ids: Iterable[int] | None = None,
        ranks: int = PRIOR_RANKS,
        seconds: float = float("inf"),
    ) -> "BigramPrior":
        """Measure the prior on single tokens; takes as long as a prompt of so many tokens.

        The tokens hang side by side after one text, as a tree in which none sees another. A text
        such as the model usually writes makes better draft tokens than none.

        Args:
            model: whose prior.
            before: the tokens before each, at least one; of more than fit the context the newest.
            ids: only these tokens, in this order, each once; None for all.
            ranks: successors of each token.
            seconds: stop before this time is over; a few tokens are measured however long they
                take.
        """
        ranks = min(ranks, model.vocab_size)
        limit = model.context_length
        if limit is not None:  # the tree takes two places of its own: root and token
            before = list(before)[-(limit - 1) :] if limit > 1 else ()
        tables = [(np.empty(0, np.int32), *(np.empty((0, ranks), kind) for kind in "if"))]
        if before:  # else what follows a token is behind the context
            asked = range(model.vocab_size) if ids is None else ids
            with closing(model.start()) as session:
                tables += _successors(session, before, iter(asked), ranks, seconds)
        asked_ids, tokens, probs = map(np.concatenate, zip(*tables, strict=True))
        return cls(asked_ids, tokens, probs)

    def joined(self, other: "BigramPrior") -> "BigramPrior":
        """This table and the rows of another, which has as many ranks and none of these ids."""
        pairs = ((self.ids, other.ids), (self.tokens, other.tokens), (self.probs, other.probs))
        ids, tokens, probs = map(np.concatenate, pairs)
        return BigramPrior(ids, tokens, probs)

    def save(self, path: Path) -> None:
        """Write the table to a file."""
        tables = {"ids": self.ids, "tokens": self.tokens, "probs": self.probs.astype(np.float16)}
        write_arrays(path, tables, {"is_rough": "yes"} if self.is_rough else None)

    @classmethod
    def load(cls, path: Path) -> "BigramPrior":
        """Read a table that ``save`` wrote.

        Raises:
            ValueError: where the file holds none.
        """
        try:
            with safe_open(path, "np") as file:
                ids, tokens, probs = map(file.get_tensor, ("ids", "tokens", "probs"))
                return cls(ids, tokens, probs, "is_rough" in (file.metadata() or {}))
        except SafetensorError as error:
            raise ValueError(f"{path} holds no bigram prior: {error}") from error

    @cached_property
    def rows(self) -> Int[np.ndarray, " vocab"]:
        """Row of each token in the tables; -1 where it has none."""
        rows = np.full(int(self.ids.max(initial=-1)) + 1, -1, np.int32)
        rows[self.ids] = np.arange(len(self.ids))
        return rows

    def native(self, request: DraftRequest) -> NativeSource:
        tables = (self.rows, self.tokens, self.probs)
        sizes = (len(self.rows), self.tokens.shape[1])
        settings = CBigramPriorSettings(*map(address_of, tables), *sizes)
        return NativeSource(self.name, settings, (Evidence(self.name, 1),), shared=tables)


def _successors(
    session: ModelSession, before: Sequence[int], ids: Iterable[int], ranks: int, seconds: float
) -> Iterable[
    tuple[Int[np.ndarray, " star"], Int[np.ndarray, "star ranks"], Float[np.ndarray, "star ranks"]]
]:
    """Ask for the likeliest successors of tokens, star by star, for as many as time allows."""
    *earlier, root = before
    if earlier:
        extend_in_chunks(session, earlier)
    since, width, done = time.perf_counter(), LEAST_STAR, 0
    while star := list(islice(ids, width)):
        tree = DraftTree.of([root, *star], [-1] + [0] * len(star))
        logits = session.forward(tree).rows[1:]
        yield np.array(star, np.int32), *topk_probs(logits, ranks, temperature=1.0)
        done += len(star)
        width = min(STAR, 2 * width)
        if (time.perf_counter() - since) * (1 + width / done) > seconds:
            break
