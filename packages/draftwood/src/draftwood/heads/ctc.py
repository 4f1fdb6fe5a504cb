"""Settings of CTC heads, and the distribution of texts that their frames are taken for."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from draftwood.heads.lattice import (
    Chain,
    FrameRows,
    Frames,
    Lattice,
    Pairs,
    Unmerged,
    logarithms,
)
from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes


@dataclass(frozen=True)
class CtcConfig:
    """Settings of a CTC head.

    Attributes:
        sizes: of its layer.
        form: "layer" lets frames see the context and each other; "linear" gives them the newest
            state alone, as the heads of Medusa have it.
        frames: places that it drafts at once.
        layers: decoder layers of the frames. Each gives the context keys and values of its own.
        reads: the target's layers whose inputs it reads; the number after the last one means the
            state after the final norm. Several are normed and joined, as EAGLE-3 has it, and what
            comes of that is added to the last of them.
        reads_root: whether a row also reads the token at the next place, which for the newest row
            is the root of the draft tree.
        has_blank: whether a frame may emit a blank; without blanks, frame f drafts place f.
        window: newest rows of the context that a frame sees; None for all.
        pairwise: rank of the term between neighbouring frames' tokens; 0 for none.
        candidates: likeliest tokens of a frame that a pairwise term decides between.
    """

    kind: ClassVar[str] = "ctc"
    sizes: HeadSizes
    form: Literal["layer", "linear"] = "layer"
    frames: int = 8
    layers: int = 1
    reads: tuple[int, ...] = (0,)
    reads_root: bool = True
    has_blank: bool = True
    window: int | None = None
    pairwise: int = 0
    candidates: int = 16

    def __post_init__(self) -> None:
        if self.form not in ("layer", "linear"):
            raise ValueError(f"form must be layer or linear, got {self.form!r}")
        if self.frames < 1:
            raise ValueError(f"a head has at least one frame, got {self.frames}")
        if not self.reads:
            raise ValueError("a CTC head reads at least one layer of its target")
        if self.layers < 1 or (self.layers > 1 and self.form == "linear"):
            raise ValueError(
                f"frames have at least one layer, and linear ones no more, got {self.layers}"
            )
        if self.pairwise and (self.has_blank or self.candidates < 1):
            raise ValueError(
                "a pairwise term needs frames without a blank and at least one candidate, got"
                f" has_blank {self.has_blank} and candidates {self.candidates}"
            )
        if self.window is not None and self.window < 1:
            raise ValueError(f"a frame sees at least one row, got a window of {self.window}")

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``CtcHead``."""
        dim, count, found = self.sizes.hidden, len(self.reads), TensorShapes(self.sizes)
        if count > 1:
            found.norm(*(f"fc_norm.{number}" for number in range(count)))
            found.matrix("fc", dim, count * dim)
        found |= {"frame_weight": (self.frames, dim, dim), "frame_bias": (self.frames, dim)}
        if self.reads_root:
            found.norm("token_norm")
            found.matrix("token_proj", dim, dim)
        for place in self.places_of_layers():
            found.layer(place)
        found.norm("norm")
        if self.has_blank:
            found["blank"] = (dim,)
        if self.pairwise:
            found.pairwise(self.pairwise)
        return found

    def places_of_layers(self) -> tuple[str, ...]:
        """Names before those of each layer's weights."""
        deeper = (f"deeper.{number}." for number in range(self.layers - 1))
        return ("", *deeper) if self.form == "layer" else ()


def frames_of(
    config: CtcConfig, probs: FrameRows, pairs: Pairs | None, merges: bool = True
) -> Frames:
    """The distribution of texts that the frames of one place are taken for.

    Args:
        probs: of each symbol in each frame.
        pairs: the head's pairwise term; None without one.
        merges: False reads frames with a blank as they are.
    """
    if pairs is not None:
        return Chain(logarithms(probs), pairs, config.candidates)
    if config.has_blank and merges:
        return Lattice(probs)
    return Unmerged(probs, config.has_blank)
