"""Draft with what the target says after a single token, whatever text the token is in."""

import ctypes
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
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
        *((name, ctypes.c_void_p) for name in ("tokens", "probs")),
        *((name, ctypes.c_int64) for name in ("known", "ranks")),
    )


@dataclass(frozen=True, eq=False)
class BigramPrior:
    """A table of the target's likeliest successors of every token, computed once per model.

    It never changes. The bigrams of N-Grammys (Stewart et al. 2024, arXiv:2411.03786): where
    nothing was learnt yet of a token, what the model says after it in no context at all is right
    more often than silence. ``BigramPrior.of`` measures it.

    Args:
        tokens: successors of each token, likeliest first; -1 where there is none. Tokens beyond the
            table have none.
        probs: their probabilities.

    Raises:
        ValueError: for tables of different shapes.
    """

    name: ClassVar[str] = "bigram-prior"
    reads_logits: ClassVar[bool] = False
    tokens: Int[np.ndarray, "known ranks"]
    probs: Float[np.ndarray, "known ranks"]

    def __post_init__(self) -> None:
        if self.tokens.shape != self.probs.shape or self.tokens.ndim != 2:
            shapes = f"{list(self.tokens.shape)} and {list(self.probs.shape)}"
            raise ValueError(f"tokens and probs must be tables of one shape, got {shapes}")
        object.__setattr__(self, "tokens", np.ascontiguousarray(as_array(self.tokens), np.int64))
        object.__setattr__(self, "probs", np.ascontiguousarray(as_array(self.probs), np.float32))

    @classmethod
    def of(
        cls,
        model: Model,
        before: Sequence[int] = (0,),
        known: int | None = None,
        ranks: int = PRIOR_RANKS,
        seconds: float = float("inf"),
    ) -> "BigramPrior":
        """Measure the prior on single tokens; takes as long as a prompt of so many tokens.

        The tokens hang side by side after one text, as a tree in which none sees another. A text
        such as the model usually writes makes better draft tokens than none.

        Args:
            model: whose prior.
            before: the tokens before each, at least one; of more than fit the context the newest.
            known: only for the first so many tokens; vocabularies made by merging are in order of
                frequency.
            ranks: successors of each token.
            seconds: stop before this time is over; a few tokens are measured however long they
                take.
        """
        known, ranks = (
            min(known or model.vocab_size, model.vocab_size),
            min(ranks, model.vocab_size),
        )
        limit = model.context_length
        if limit is not None:  # the tree takes two places of its own: root and token
            before = list(before)[-(limit - 1) :] if limit > 1 else ()
        if not before:  # what follows a token is behind the context
            return cls(np.empty((0, ranks), np.int64), np.empty((0, ranks), np.float32))
        with closing(model.start()) as session:
            return cls(*_successors(session, before, known, ranks, seconds))

    def save(self, path: Path) -> None:
        """Write the table to a file."""
        tables = {"tokens": self.tokens.astype(np.int32), "probs": self.probs.astype(np.float16)}
        write_arrays(path, tables)

    @classmethod
    def load(cls, path: Path) -> "BigramPrior":
        """Read a table that ``save`` wrote.

        Raises:
            ValueError: where the file holds none.
        """
        try:
            with safe_open(path, "np") as file:
                return cls(file.get_tensor("tokens"), file.get_tensor("probs"))
        except SafetensorError as error:
            raise ValueError(f"{path} holds no bigram prior: {error}") from error

    def native(self, request: DraftRequest) -> NativeSource:
        tables = (self.tokens, self.probs)
        settings = CBigramPriorSettings(*(address_of(table) for table in tables), *tables[0].shape)
        return NativeSource(self.name, settings, (Evidence(self.name, 1),), shared=tables)


def _successors(
    session: ModelSession, before: Sequence[int], known: int, ranks: int, seconds: float
) -> tuple[Int[np.ndarray, "known ranks"], Float[np.ndarray, "known ranks"]]:
    """The likeliest successors of the first ``known`` tokens, or of as many as time allows."""
    tokens, probs = [], []
    *earlier, root = before
    if earlier:
        extend_in_chunks(session, earlier)
    since, width, start = time.perf_counter(), LEAST_STAR, 0
    while start < known:
        star = list(range(start, min(known, start + width)))
        tree = DraftTree.of([root, *star], [-1] + [0] * len(star))
        logits = session.forward(tree).rows[1:]
        best, chances = topk_probs(logits, ranks, temperature=1.0)
        tokens.append(best)
        probs.append(chances)
        start += len(star)
        spent = time.perf_counter() - since
        width = min(STAR, 2 * width)
        if spent * (1 + width / start) > seconds:
            break
    return np.concatenate(tokens), np.concatenate(probs)
