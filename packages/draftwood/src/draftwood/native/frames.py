"""CTC heads in C++: frames that draft the next places all at once; see frames.h."""

import ctypes
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwood.arrays import as_array
from draftwood.native import library, structures
from draftwood.native.formats import HeadSizes
from draftwood.native.head import HeadWeights, PackedHead
from draftwood.native.head_session import HeadStates, given_states
from draftwood.native.matrix import Blocks, decoded
from draftwood.native.threads import threads


@dataclass(frozen=True, kw_only=True)
class FrameShape(HeadSizes):
    """Sizes and switches of a CTC head.

    Attributes:
        frames: places that it drafts at once.
        layers: names before those of a decoder layer's weights, such as ``layers.0.``; without
            layers a frame sees the newest row alone.
        reads: states of the target that become one row.
        norms_features: whether each of several states is normed before.
        reads_root: whether a row also reads the token at the next place.
        has_blank: whether a frame may emit a blank.
        window: newest rows of the context that a frame sees; None for all.
    """

    frames: int
    layers: tuple[str, ...]
    reads: int
    norms_features: bool
    reads_root: bool
    has_blank: bool
    window: int | None


class NativeFrames(PackedHead):
    """A CTC head as the library runs it, for any number of texts.

    Args:
        shape: what the head is.
        weights: by the names of ``CtcHead.state_dict()``.
        given: draft vocabulary, embedding and products, as ``PackedHead`` takes them.

    Attributes:
        structure: what the library reads.
    """

    def __init__(self, shape: FrameShape, weights: HeadWeights, **given: Any) -> None:
        born = {**weights, "births.weight": _below_each_other(weights["frame_weight"])}
        del born["frame_weight"]
        blank = [weights["blank"]] if shape.has_blank else []
        super().__init__(shape, born, more_rows=blank, **given)
        self.shape, dim = shape, shape.hidden
        nothing = structures.CNorm(), structures.CMatrix()
        norm, projection = (
            (self._norm("token_norm"), self._matrix("token_proj", dim, dim))
            if shape.reads_root
            else nothing
        )
        several = shape.reads > 1
        combination = self._matrix("fc", dim, shape.reads * dim) if several else nothing[1]
        births_matrix = self._matrix("births", shape.frames * dim, dim)
        self._decoder = self._network(self._layers())
        self.structure = structures.CFrameHead(
            decoder=ctypes.pointer(self._decoder),
            layers=len(shape.layers),
            frames=shape.frames,
            reads=shape.reads,
            norms=self._norms() if several and shape.norms_features else None,
            combination=combination,
            target_vocabulary=self.target_vocabulary,
            token_norm=norm,
            token_projection=projection,
            births=births_matrix,
            offsets=self._address(_floats(weights["frame_bias"])),
        )
        self._let_go()

    @property
    def symbols(self) -> int:
        """Draft tokens, and the blank where there is one."""
        return self.vocab_size + self.shape.has_blank

    def start(self) -> "FrameSession":
        """Begin a text."""
        return FrameSession(self)

    def _layers(self) -> "ctypes.Array[structures.CLayer] | None":
        shape = self.shape
        window = None if shape.window is None else shape.window + shape.frames
        layers = [
            self._decoder_layer(name, shape.hidden, window, number)
            for number, name in enumerate(shape.layers)
        ]
        return (structures.CLayer * len(layers))(*layers) if layers else None

    def _norms(self) -> "ctypes.Array[structures.CNorm]":
        names = [f"fc_norm.{number}" for number in range(self.shape.reads)]
        return (structures.CNorm * len(names))(*map(self._norm, names))


def _below_each_other(matrices: Any) -> Any:
    """Matrices of one name as one, which blocks of a file are already."""
    if isinstance(matrices, Blocks):
        return matrices
    return as_array(matrices).reshape(-1, matrices.shape[-1])


def _floats(vectors: Any) -> np.ndarray:
    """A table of vectors in float32; folders of before 2026-12 have them in blocks too."""
    return decoded(vectors) if isinstance(vectors, Blocks) else as_array(vectors).astype(np.float32)


class FrameSession:
    """One text of a ``NativeFrames``. Use it in one thread.

    Row t holds the target's states at place t and the token at place t + 1.
    """

    def __init__(self, head: NativeFrames) -> None:
        self.head, self._library = head, library.library()
        self.handle = self._library.draftwood_frames_new(byref(head.structure))
        library.freed_with(self, self._library.draftwood_frames_free, self.handle, kept=head)
        self._probs = np.empty((head.shape.frames, head.symbols), np.float32)

    def take(self, states: HeadStates, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Append rows of the context.

        Args:
            states: of the target, an array of each layer.
            rows: of these that are taken, in order.
            tokens: the token behind each.

        Raises:
            ValueError: for tokens beyond the vocabulary, and states of another form.
        """
        self._take(states, rows, tokens, None)

    def probs(self, states: HeadStates, rows: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Append rows as ``take`` does; return what the frames behind the last one say.

        Returns:
            Probabilities [frames symbols], the blank last; they are the library's until the next
            call. All are NaN once a state of the text was NaN or infinite.
        """
        self._take(states, rows, tokens, self._probs.ctypes.data)
        return self._probs

    def _take(
        self, states: HeadStates, rows: Sequence[int], tokens: Sequence[int], probs: int | None
    ) -> None:
        shape = self.head.shape
        if not tokens or len(rows) != len(tokens) or len(states) != shape.reads:
            raise ValueError(
                f"each of {len(tokens)} tokens needs a row of {shape.reads} layers' states, got"
                f" {len(rows)} of {len(states)}"
            )
        odd = self._library.draftwood_frames_take(
            self.handle,
            given_states(states, rows, shape.hidden),
            library.integers(tokens),
            len(tokens),
            probs,
            threads(),
        )
        if odd >= 0:
            raise ValueError(
                f"token {tokens[odd]} is beyond the vocabulary of {self.head.target_vocabulary}"
            )
