"""Trained heads in C++: decoder layers that continue their target's hidden states.

See head.h, and ``EagleHead`` of draftwood-torch for the computation.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwood.arrays import address_of, as_array, bits_of, is_bfloat16
from draftwood.native import library, structures
from draftwood.native.formats import HeadSizes, Products
from draftwood.native.head_session import MAX_RANKS, HeadSession
from draftwood.native.matrix import FROM_FLOATS, Blocks, Chosen, LargePages, Matrix, decoded

_LAYER = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


@dataclass(frozen=True, kw_only=True)
class HeadShape(HeadSizes):
    """Sizes and switches of a head.

    Attributes:
        layers: decoder layers; the first reads token and state side by side.
        reads: states of the target that become one; 0 for a head that reads tokens alone.
        norms_features: whether each of these is normed before.
        feeds_normed: whether a drafted state is fed back after the final norm.
        starts_normed: whether the residual stream starts with the normed state.
        window: newest rows that a row sees, itself included; None for all.
    """

    layers: int
    reads: int
    norms_features: bool
    feeds_normed: bool
    starts_normed: bool
    window: int | None


HeadWeights = Mapping[str, Any]
"""Weights by the names of a network's ``state_dict()``: arrays, tensors, or blocks of a file."""


class PackedHead:
    """Weights of a head as the library reads them; what kinds of heads have in common.

    Args:
        shape: of its layers.
        weights: by their names; who derives from this class packs them with ``_matrix`` and
            ``_norm``.
        draft_tokens: [draft_vocab], the draft vocabulary in numbers of the target's, all different.
        lm_rows: [draft_vocab dim], of the target's output head, one for each draft token.
        embedding: [vocab dim], the target's, in float32, the bits of bfloat16 or a file's blocks.
            Keys and values are stored in its type, in bfloat16 beside blocks. It is read where it
            lies, not copied.
        embedding_scale: what embedded tokens are multiplied with.
        products: how matrices are stored and multiplied; see ``NativeModel``.
        more_rows: of the output head, behind those of the draft tokens.
        logit_scale: what products with the output rows are multiplied with.

    Attributes:
        weight_bytes: of all matrices with their scales.

    Raises:
        ValueError: for weights, vocabularies or CPUs that are not supported.
    """

    def __init__(
        self,
        shape: HeadSizes,
        weights: HeadWeights,
        draft_tokens: Any,
        lm_rows: Any,
        embedding: Any,
        embedding_scale: float = 1.0,
        products: Products = "int8",
        more_rows: Sequence[Any] = (),
        logit_scale: float = 1.0,
    ) -> None:
        if reason := why_not(shape, products):
            raise ValueError(reason)
        self.target_vocabulary = embedding.shape[0]
        draft_tokens, lm_rows = as_array(draft_tokens), _kept_or_floats(lm_rows, products)
        _check_vocabulary(shape, draft_tokens, lm_rows, embedding)
        if more_rows:
            lm_rows = lm_rows.floats() if isinstance(lm_rows, Chosen) else lm_rows
            lm_rows = decoded(lm_rows) if isinstance(lm_rows, Blocks) else lm_rows
            lm_rows = np.concatenate([lm_rows, *(as_array(row)[None] for row in more_rows)])
        self.is_bfloat16 = isinstance(embedding, Matrix) or is_bfloat16(embedding)
        if not isinstance(embedding, Matrix):
            embedding = bits_of(embedding) if self.is_bfloat16 else as_array(embedding)
        self._sizes, self._embedding, self._embedding_scale = shape, embedding, embedding_scale
        self._logit_scale = logit_scale
        self.products: Products = products
        self.vocab_size = len(draft_tokens)
        self.draft_tokens = np.ascontiguousarray(draft_tokens, np.int64)
        self.weight_bytes, self._encodings = 0, 0
        self._memory: list[object] = []  # what the structures point to
        self._weights = {name: _kept_or_floats(each, products) for name, each in weights.items()}
        self._pages = LargePages()
        self._lm_head = self._packed("the rows of the output head", lm_rows)

    def _decoder_layer(
        self, place: str, inputs: int, window: int | None, number: int
    ) -> structures.CLayer:
        """A decoder layer whose weights' names begin with ``place``.

        Args:
            inputs: entries that its attention reads.
            window: newest rows that a row sees, itself included; None for all.
            number: of the layer in its head.
        """
        shape = self._sizes
        queries, keys = shape.heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        sizes = {
            "query": (queries, inputs),
            "key": (keys, inputs),
            "value": (keys, inputs),
            "output": (shape.hidden, queries),
            "gate": (shape.intermediate_size, shape.hidden),
            "up": (shape.intermediate_size, shape.hidden),
            "down": (shape.hidden, shape.intermediate_size),
        }
        return structures.CLayer(
            **{own: self._norm(place + name) for own, name in _NORMS.items()},
            **{own: self._matrix(place + name, *sizes[own]) for own, name in _LAYER.items()},
            window=window or 0,
            cached=number,
        )

    def _network(
        self,
        layers: ctypes.Array[structures.CLayer] | None,
        fusion: structures.CFusion | None = None,
        norm: str | None = "norm",
    ) -> structures.CDecoder:
        """The head as a decoder; all matrices are packed before.

        Args:
            norm: name of the final norm; None for none.
        """
        shape, embedding = self._sizes, self._embedding
        powers = np.arange(0, shape.head_dim, 2, dtype=np.float32) / np.float32(shape.head_dim)
        return structures.CDecoder(
            hidden=shape.hidden,
            heads=shape.heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rotary_dim=shape.head_dim,
            rotaries=1,
            vocabulary=self._lm_head.outputs,
            encodings=self._encodings,
            is_bfloat16=self.is_bfloat16,
            gating=structures.CGating(structures.ACTIVATIONS["silu"], 1.0, 0.0, 0.0),
            epsilon=shape.epsilon,
            embedding_scale=self._embedding_scale,
            attention_scale=shape.head_dim**-0.5,
            residual_scale=1.0,
            logit_scale=self._logit_scale,
            rotary_scales=self._address(np.ones(1, np.float32)),
            frequencies=self._address(1 / np.float32(shape.rope_theta) ** powers),
            embedding=None if isinstance(embedding, Matrix) else self._address(embedding),
            embedding_codes=self._kept(embedding).structure
            if isinstance(embedding, Matrix)
            else structures.CMatrix(),
            norm=structures.CNorm() if norm is None else self._norm(norm),
            lm_head=self._lm_head,
            layers=layers,
            fusion=None if fusion is None else ctypes.pointer(fusion),
        )

    def _let_go(self) -> None:
        """Drop the unpacked weights, and what is needed only to pack them."""
        del self._weights, self._pages

    def _matrix(self, name: str, outputs: int, inputs: int) -> structures.CMatrix:
        return self._packed(name, self._weight(name, (outputs, inputs)))

    def _packed(self, name: str, weight: np.ndarray | Blocks | Chosen) -> structures.CMatrix:
        if not isinstance(weight, Blocks | Chosen) and not (
            np.isfinite(np.min(weight)) and np.isfinite(np.max(weight))  # no array of answers
        ):
            raise ValueError(f"{name} holds numbers that are not finite; train the head again")
        matrix = self._kept(Matrix.pack(weight, None, self.products, self._pages.take))
        self.weight_bytes += matrix.weight_bytes
        self._encodings |= matrix.structure.encoding
        return matrix.structure

    def _norm(self, name: str) -> structures.CNorm:
        weight = self._weight(name, (self._sizes.hidden,))
        return structures.CNorm(self._address(weight.astype(np.float32)), None)

    def _weight(self, name: str, shape: tuple[int, ...]) -> Any:
        found = self._weights.get(f"{name}.weight")
        if found is None or tuple(found.shape) != shape:
            lies = "is missing" if found is None else f"has the shape {tuple(found.shape)}"
            raise ValueError(f"{name}.weight {lies}; this head needs one of {shape}")
        return found

    def _kept(self, matrix: Matrix) -> Matrix:
        self._memory.append(matrix)
        return matrix

    def _address(self, numbers: np.ndarray) -> int:
        array = np.ascontiguousarray(numbers)
        self._memory.append(array)
        return address_of(array)


class SessionHead:
    """A head as the library runs it, for any number of texts: what its sessions read.

    A row gives the same bits whatever is computed beside it: alone, among others, in a tree.

    Attributes:
        width: entries of a state.
        reads: states of the target that a row reads; 0 for a head that reads tokens alone.
        structure: of the head.
        draft_tokens: [draft_vocab], the draft vocabulary in numbers of the target's.
        vocab_size, target_vocabulary: of both vocabularies.
    """

    width: int
    reads: int
    structure: structures.CHead
    draft_tokens: np.ndarray
    vocab_size: int
    target_vocabulary: int

    def start(
        self, ranks: int = 8, temperature: float = 0.0, key: int | None = None
    ) -> HeadSession:
        """Begin a text.

        Args:
            ranks: successors of each row that are handed out.
            temperature: of their probabilities; at 0 they are those at 1.
            key: of the request's noise. With it, and a temperature above 0, the successors are
                those that come first in the race of the draws to come (``rng.py``), over the whole
                draft vocabulary; else the likeliest.
        """
        if not 0 <= ranks <= min(MAX_RANKS, self.vocab_size):
            raise ValueError(
                f"ranks must be 0 to {min(MAX_RANKS, self.vocab_size)} here, got {ranks}"
            )
        return HeadSession(self, ranks, temperature, key)


class NativeHead(PackedHead, SessionHead):
    """A trained head as the library runs it.

    Args:
        shape: what the head is.
        weights: by the names of ``EagleHead.state_dict()``; of ``LmHead.state_dict()`` for a head
            that reads tokens alone.
        given: draft vocabulary, embedding and products, as ``PackedHead`` takes them.
    """

    def __init__(self, shape: HeadShape, weights: HeadWeights, **given: Any) -> None:
        super().__init__(shape, weights, **given)
        self.shape, self.width, self.reads = shape, shape.hidden, shape.reads
        fusion = self._fusion()
        layers = (structures.CLayer * shape.layers)(*map(self._layer, range(shape.layers)))
        self._decoder = self._network(layers, fusion)
        self.structure = structures.CHead(
            ctypes.pointer(self._decoder),
            shape.layers,
            address_of(self.draft_tokens),
            self.target_vocabulary,
        )
        self._let_go()

    def _fusion(self) -> structures.CFusion:
        shape = self.shape
        if not shape.reads:
            return structures.CFusion(matrix=self._matrix("proj", shape.hidden, shape.hidden))
        norms = None
        if shape.norms_features:
            names = [f"fc_norm.{number}" for number in range(shape.reads)]
            norms = (structures.CNorm * shape.reads)(*map(self._norm, names))
        return structures.CFusion(
            reads=shape.reads,
            feeds_normed=shape.feeds_normed,
            starts_normed=shape.starts_normed,
            norms=norms,
            matrix=self._matrix("fc", shape.hidden, shape.reads * shape.hidden),
            state_norm=self._norm("layers.0.hidden_norm"),
        )

    def _layer(self, number: int) -> structures.CLayer:
        inputs = self.shape.hidden * (2 if number == 0 and self.shape.reads else 1)
        return self._decoder_layer(f"layers.{number}.", inputs, self.shape.window, number)


class LayerHead(SessionHead):
    """A head of one layer that is a decoder like its target's, and shares the rest with it.

    Args:
        target: structure of the target, with embedding, output head, rotary tables and scales.
        layer, norm: of the head; the norm is behind its layer.
        fusion: what is before the layer.
        encodings: of rows, that the head's own matrices ask for.
        kept: what has to stay in memory with it.
    """

    def __init__(
        self,
        target: structures.CDecoder,
        layer: structures.CLayer,
        norm: structures.CNorm,
        fusion: structures.CFusion,
        encodings: int,
        kept: object,
    ) -> None:
        own = structures.CDecoder.from_buffer_copy(target)
        own.layers, own.norm = (structures.CLayer * 1)(layer), norm
        own.inputs = structures.CLayerInputs()  # those of the target's layers
        own.fusion, own.has_byte_cache = ctypes.pointer(fusion), False
        own.encodings |= encodings
        self.width, self.reads = own.hidden, fusion.reads
        self.vocab_size = self.target_vocabulary = own.vocabulary
        self.draft_tokens = np.arange(self.vocab_size, dtype=np.int64)
        self.structure = structures.CHead(
            ctypes.pointer(own), 1, address_of(self.draft_tokens), self.target_vocabulary
        )
        self._kept = kept, own, fusion


def _kept_or_floats(weight: Any, products: Products) -> Any:
    """A file's blocks where floats would be packed into the same, else a weight in floats; rows of
    the target stay what they are.
    """
    if isinstance(weight, Chosen):
        return weight
    if not isinstance(weight, Blocks):
        return as_array(weight)
    keeps = products in ("int4", "int8") and weight.format in ("Q4_1", FROM_FLOATS[products])
    return weight if keeps else decoded(weight)


def why_not(shape: HeadSizes, products: Products = "int8") -> str | None:
    """Reason why the library cannot run such a head, as a clause; None where it can."""
    if not library.available():
        return f"the native head needs draftwood's C++ library: {library.why_missing()}"
    if products in ("int8", "int4") and not library.instructions(True):
        return f"{products} needs a CPU with fast 8-bit products; take bfloat16 or float32"
    if shape.head_dim % 2:
        return f"the native head needs an even head_dim, got {shape.head_dim}; run it in PyTorch"
    return None


def _check_vocabulary(
    shape: HeadSizes,
    draft_tokens: np.ndarray,
    lm_rows: np.ndarray | Blocks | Chosen,
    embedding: Any,
) -> None:
    vocabulary, width = embedding.shape
    kind = "float32" if isinstance(embedding, Matrix) else str(embedding.dtype)
    if not kind.endswith(("float32", "bfloat16", "uint16")):
        raise ValueError(f"the embedding must be in float32 or bfloat16, got {kind}")
    if width != shape.hidden or tuple(lm_rows.shape) != (len(draft_tokens), shape.hidden):
        raise ValueError(
            f"a head of {shape.hidden} entries and {len(draft_tokens)} draft tokens does not go"
            f" with an embedding of {width} entries and output rows {tuple(lm_rows.shape)}; take"
            " those of the target that it was trained for"
        )
    if not len(draft_tokens) or not 0 <= int(draft_tokens.min()) <= int(draft_tokens.max()) < (
        vocabulary
    ):
        raise ValueError(f"draft tokens must be some of the target's 0 to {vocabulary - 1}")
    if len(set(draft_tokens.tolist())) != len(draft_tokens):
        raise ValueError("draft tokens must differ from each other")
