"""Medusa's and Hydra's heads in C++; see medusa.h."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwood.native import library, structures
from draftwood.native.formats import HeadSizes
from draftwood.native.head import HeadWeights, PackedHead
from draftwood.native.head_session import HeadStates, given_states
from draftwood.native.threads import threads


@dataclass(frozen=True, kw_only=True)
class MedusaShape(HeadSizes):
    """Sizes of a set of Medusa or Hydra heads.

    Attributes:
        reads: how many tokens, from the root on, the head of each level reads.
    """

    reads: tuple[int, ...]


class NativeMedusa(PackedHead):
    """Medusa's or Hydra's heads as the library runs them.

    Args:
        shape: what they are.
        weights: by the names of ``MedusaHead.state_dict()``.
        given: draft vocabulary, embedding and products, as ``PackedHead`` takes them.
    """

    def __init__(self, shape: MedusaShape, weights: HeadWeights, **given: Any) -> None:
        super().__init__(shape, weights, **given)
        self.shape, dim, levels = shape, shape.hidden, len(shape.reads)
        matrices = structures.CMatrix * levels
        self._projections = matrices(
            *(
                self._matrix(f"projections.{level}", dim, (1 + count) * dim)
                if count
                else structures.CMatrix()
                for level, count in enumerate(shape.reads)
            )
        )
        self._blocks = matrices(
            *(self._matrix(f"blocks.{level}", dim, dim) for level in range(levels))
        )
        self._decoder = self._network(None, norm=None)
        self._reads = (ctypes.c_int32 * levels)(*shape.reads)
        self.structure = structures.CMedusaHeads(
            decoder=ctypes.pointer(self._decoder),
            reads=ctypes.addressof(self._reads),
            target_vocabulary=self.target_vocabulary,
            token_norm=self._norm("token_norm") if any(shape.reads) else structures.CNorm(),
            projections=self._projections,
            blocks=self._blocks,
        )
        self._let_go()

    def logits(
        self,
        states: HeadStates,
        row: int,
        levels: Sequence[int],
        tokens: Sequence[Sequence[int]],
        out: np.ndarray,
    ) -> np.ndarray:
        """Logits of the draft vocabulary, each row by the head of its level.

        Args:
            states: of the target, one array.
            row: of it that all heads read.
            levels: of each row of the result.
            tokens: that each reads, as many as ``shape.reads`` says of its level.
            out: memory [at least as many rows, draft vocabulary] in float32 for the result.

        Returns:
            Rows of ``out``, NaN where the state holds NaN or infinity.

        Raises:
            ValueError: for tokens beyond the vocabulary, and states of another form.
        """
        if [len(each) for each in tokens] != [self.shape.reads[level] for level in levels]:
            raise ValueError(f"heads of levels {list(levels)} read other numbers of tokens")
        most, rows = max(self.shape.reads), len(levels)
        padded = [token for each in tokens for token in [*each, *[0] * (most - len(each))]]
        odd = library.library().draftwood_medusa_logits(
            self.structure,
            given_states(states, [row], self.shape.hidden),
            (ctypes.c_int32 * rows)(*levels),
            rows,
            library.integers(padded),
            most,
            out.ctypes.data,
            threads(),
        )
        if odd >= 0:
            raise ValueError(
                f"one of the tokens {list(tokens[odd])} is beyond the vocabulary of"
                f" {self.target_vocabulary}"
            )
        return out[:rows]
