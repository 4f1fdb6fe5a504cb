"""Trees that the library draws and judges in whole steps; see drawn_trees.h and verdicts.h."""

from collections.abc import Sequence
from ctypes import addressof, byref, c_int32, pointer
from dataclasses import dataclass
from typing import Literal

import numpy as np

from draftwood.native import library
from draftwood.native.drafting import Costs
from draftwood.native.head_drafting import HeadDrafting
from draftwood.native.jacobi import JacobiRows
from draftwood.native.structures import CCacheShape, CDecoder, CDraftModelText, CDrawnShape


@dataclass(frozen=True)
class DrawnShape:
    """A shape as the library draws it.

    Attributes:
        widths: children of a node, level by level; beams of a level where ``beam`` is True.
        nodes: most nodes besides the root.
        draw: how siblings are drawn.
        beam: True for a stochastic beam.
    """

    widths: tuple[int, ...]
    nodes: int
    draw: Literal["distinct", "independent"] = "distinct"
    beam: bool = False

    @property
    def uniforms(self) -> int:
        """Most uniform numbers that a tree and its verdict take."""
        count, rows = self.nodes, 1  # a test of each node
        for width in self.widths:
            count += rows * width * (2 if self.beam else 1)
            rows = min(width if self.beam else rows * width, self.nodes)
        return count


class DraftModelText:
    """Place of a text in a draft model, for levels that the library runs.

    Args:
        decoder: of the model.
        shape: of the model's cache.
        layers: of the model.
        target_vocabulary: tokens beyond it are not drafted.
        stand_in: read in the place of tokens that the model lacks.
    """

    def __init__(
        self,
        decoder: CDecoder,
        shape: CCacheShape,
        layers: int,
        target_vocabulary: int,
        stand_in: int,
    ) -> None:
        self.structure = CDraftModelText(
            decoder=pointer(decoder),
            shape=pointer(shape),
            layers=layers,
            target_vocabulary=target_vocabulary,
            stand_in=stand_in,
        )
        compiled = library.library()
        self.levels: int = compiled.draftwood_model_levels_new(addressof(self.structure))
        free = compiled.draftwood_model_levels_free
        library.freed_with(self, free, self.levels, kept=self.structure)

    def prepare(self, slot: int, blocks: int, length: int, late: Sequence[int]) -> None:
        """Say where the text goes on.

        Args:
            slot: of the model's cache.
            blocks: address of the slot's table, with room for what is late, for all that steps
                append, the root and a tree.
            length: tokens in the cache.
            late: tokens of the text that are not in it.
        """
        text = self.structure
        text.slot, text.blocks, text.length = slot, blocks, length
        text.late, text.num_late = library.integers(late), len(late)

    @property
    def length(self) -> int:
        """Tokens in the cache, after the steps."""
        return self.structure.length

    @property
    def late(self) -> list[int]:
        """Tokens of the text that are not in the cache, after the steps."""
        return self.structure.late[: self.structure.num_late]


class DrawnTrees:
    """Trees of one text, drawn from the rows of a head, of a draft model or of the last pass.

    Args:
        source: what gives the rows.
        shape: of the trees.
        temperature: of the draft.
        noise: with False the likeliest tokens are taken.
    """

    def __init__(
        self,
        source: HeadDrafting | DraftModelText | JacobiRows,
        shape: DrawnShape,
        temperature: float,
        noise: bool,
    ) -> None:
        self.shape, self.source, compiled = shape, source, library.library()
        settings = CDrawnShape(
            widths=(c_int32 * len(shape.widths))(*shape.widths),
            levels=len(shape.widths),
            is_beam=shape.beam,
            is_distinct=shape.draw == "distinct",
            is_noisy=noise,
            is_judged_distinct=shape.draw == "distinct",
            temperature=temperature,
        )
        self.handle: int = compiled.draftwood_drawn_new(byref(settings), source.levels)
        library.freed_with(self, compiled.draftwood_drawn_free, self.handle, kept=source)
        self.costs = Costs([0.0] * (1 + shape.nodes), [0.0] * (1 + shape.nodes))


@dataclass(frozen=True)
class KeptChances:
    """A row that the library drew from; implements ``tree.DrawnRow`` for what was drawn alone.

    Attributes:
        chances: of the drawn tokens.
    """

    chances: dict[int, float]

    def chance(self, token: int) -> float:
        """Probability of a drawn token."""
        return self.chances[token]

    def array(self) -> np.ndarray:
        """Raise ValueError: the library keeps no rows."""
        raise ValueError("the library kept no rows of this tree; draft in Python to read them")


def kept_chances(
    tokens: Sequence[int], parents: Sequence[int], chances: Sequence[float]
) -> list[KeptChances]:
    """Probabilities of drawn tokens alone, by the row that each was drawn from."""
    rows = [KeptChances({}) for _ in range(1 + max(parents))]
    for token, parent, chance in zip(tokens[1:], parents[1:], chances[1:], strict=True):
        rows[parent].chances[token] = chance
    return rows
