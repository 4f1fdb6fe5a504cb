"""A drafter's head in C++: a decoder layer that goes on from its target's hidden states.

See head.h. What such a head computes is told by ``heads/eagle.py``.
"""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_float, c_int64
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import library, structures
from draftwood.native.matrix import Matrix
from draftwood.native.threads import threads

MAX_RANKS = 64
"""Most successors of a row that are asked for."""
MAX_ROWS = 64
"""Most rows of a level."""
HeadProducts = Literal["float32", "bfloat16", "int8", "int4"]
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


@dataclass(frozen=True)
class HeadShape:
    """Sizes and switches of a head.

    Attributes:
        hidden: entries of a hidden state, the target's.
        layers: decoder layers; the first reads token and state side by side.
        reads: states of the target that become one.
        norms_features: whether each of these is normed before.
        feeds_normed: whether a drafted state goes back in after the final norm.
        starts_normed: whether the residual stream begins with the state as the first layer reads
            it.
        window: newest rows that a row sees, itself included; None for all.
    """

    hidden: int
    intermediate_size: int
    heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    epsilon: float
    layers: int
    reads: int
    norms_features: bool
    feeds_normed: bool
    starts_normed: bool
    window: int | None


class Found(NamedTuple):
    """Successors of some rows, best first.

    Attributes:
        tokens: of each row, in the target's vocabulary.
        log_probs: of these under a softmax over the draft vocabulary.
        race_scores: of these in the race of the next draws, the logarithm of their probability by
            the time at which they arrive; 0 without a race.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    race_scores: list[list[float]]


class DraftedNodes(NamedTuple):
    """A tree of drafts; parents come before children.

    Attributes:
        tokens: of the nodes, the root first.
        parents: of the nodes; -1 for the root.
        log_probs: of the whole path to a node: under the head, or of winning the races.
    """

    tokens: list[int]
    parents: list[int]
    log_probs: list[float]


class NativeHead:
    """A head as the library runs it, for any number of texts.

    A row gives the same bits whatever is computed beside it: alone, among others, in a tree.

    Args:
        shape: what the head is.
        weights: by the names of ``EagleHead.state_dict()``.
        draft_tokens: the draft vocabulary in numbers of the target's, all different.
        lm_rows: rows of the target's output head, one for each draft token.
        embedding: the target's, in float32, bfloat16 or a file's blocks. Keys and values are stored
            in its type, in bfloat16 beside blocks. It is read where it lies, not copied.
        embedding_scale: what embedded tokens are multiplied with.
        products: how matrices are stored and multiplied; see ``NativeModel``.

    Attributes:
        weight_bytes: of all matrices with their scales.

    Raises:
        ValueError: for weights, vocabularies or CPUs that this does not work with.
    """

    def __init__(
        self,
        shape: HeadShape,
        weights: Mapping[str, Tensor],
        draft_tokens: Int[Tensor, " draft_vocab"],
        lm_rows: Float[Tensor, "draft_vocab dim"],
        embedding: Float[Tensor, "vocab dim"] | Matrix,
        embedding_scale: float = 1.0,
        products: HeadProducts = "int8",
    ) -> None:
        if reason := why_not(shape, products):
            raise ValueError(reason)
        self.target_vocabulary = embedding.shape[0]
        _check_vocabulary(shape, draft_tokens, lm_rows, embedding)
        self.shape, self.products = shape, products
        self.vocab_size = len(draft_tokens)
        self.draft_tokens = draft_tokens.to(torch.int64).contiguous()
        self.weight_bytes, self._encodings = 0, 0
        self._memory: list[object] = []  # what the structures point to
        self._weights = weights
        fusion = self._fusion()
        self.is_bfloat16 = not (isinstance(embedding, Tensor) and embedding.dtype == torch.float32)
        layers = (structures.CLayer * shape.layers)(*map(self._layer, range(shape.layers)))
        lm_head = self._packed("the rows of the output head", lm_rows)
        self._decoder = self._network(embedding, embedding_scale, lm_head, layers, fusion)
        self.structure = structures.CHead(
            ctypes.pointer(self._decoder),
            shape.layers,
            self.draft_tokens.data_ptr(),
            self.target_vocabulary,
        )
        del self._weights

    def start(
        self, ranks: int = 8, temperature: float = 0.0, key: int | None = None
    ) -> "HeadSession":
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

    def _fusion(self) -> structures.CFusion:
        shape = self.shape
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
        shape = self.shape
        inputs = shape.hidden * (2 if number == 0 else 1)
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
        place = f"layers.{number}."
        return structures.CLayer(
            **{own: self._norm(place + name) for own, name in _NORMS.items()},
            **{own: self._matrix(place + name, *sizes[own]) for own, name in _LAYER.items()},
            window=shape.window or 0,
        )

    def _network(
        self,
        embedding: Tensor | Matrix,
        embedding_scale: float,
        lm_head: structures.CMatrix,
        layers: ctypes.Array[structures.CLayer],
        fusion: structures.CFusion,
    ) -> structures.CDecoder:
        shape = self.shape
        powers = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        return structures.CDecoder(
            hidden=shape.hidden,
            intermediate_size=shape.intermediate_size,
            heads=shape.heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rotary_dim=shape.head_dim,
            rotaries=1,
            vocabulary=self.vocab_size,
            encodings=self._encodings,
            is_bfloat16=self.is_bfloat16,
            gating=structures.CGating(structures.ACTIVATIONS["silu"], 1.0, 0.0, 0.0),
            epsilon=shape.epsilon,
            embedding_scale=embedding_scale,
            attention_scale=shape.head_dim**-0.5,
            residual_scale=1.0,
            logit_scale=1.0,
            rotary_scales=self._address(torch.ones(1)),
            frequencies=self._address(1.0 / shape.rope_theta**powers),
            embedding=self._address(embedding) if isinstance(embedding, Tensor) else None,
            embedding_codes=self._kept(embedding).structure
            if isinstance(embedding, Matrix)
            else structures.CMatrix(),
            norm=self._norm("norm"),
            lm_head=lm_head,
            layers=layers,
            fusion=ctypes.pointer(fusion),
        )

    def _matrix(self, name: str, outputs: int, inputs: int) -> structures.CMatrix:
        return self._packed(name, self._weight(name, (outputs, inputs)))

    def _packed(self, name: str, weight: Tensor) -> structures.CMatrix:
        if not bool(weight.isfinite().all()):
            raise ValueError(f"{name} holds numbers that are not finite; train the head again")
        matrix = self._kept(Matrix.pack(weight.detach(), None, self.products))
        self.weight_bytes += matrix.weight_bytes
        self._encodings |= matrix.structure.encoding
        return matrix.structure

    def _norm(self, name: str) -> structures.CNorm:
        weight = self._weight(name, (self.shape.hidden,)).detach().float()
        return structures.CNorm(self._address(weight), None)

    def _weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self._weights.get(f"{name}.weight")
        if found is None or tuple(found.shape) != shape:
            lies = "is missing" if found is None else f"has the shape {tuple(found.shape)}"
            raise ValueError(f"{name}.weight {lies}; this head needs one of {shape}")
        return found

    def _kept(self, matrix: Matrix) -> Matrix:
        self._memory.append(matrix)
        return matrix

    def _address(self, tensor: Tensor) -> int:
        tensor = tensor.contiguous()
        self._memory.append(tensor)
        return tensor.data_ptr()


def why_not(shape: HeadShape, products: HeadProducts = "int8") -> str | None:
    """What keeps the library from running such a head, in a clause; None where it can."""
    if not library.available():
        return "the native head needs a C++ compiler (for instance: apt install g++)"
    if products in ("int8", "int4") and not library.instructions(True):
        return f"{products} needs a CPU with fast 8-bit products; take bfloat16 or float32"
    if shape.head_dim % 2:
        return f"the native head needs an even head_dim, got {shape.head_dim}; run it in PyTorch"
    return None


def _check_vocabulary(
    shape: HeadShape, draft_tokens: Tensor, lm_rows: Tensor, embedding: Tensor | Matrix
) -> None:
    vocabulary, width = embedding.shape
    if isinstance(embedding, Tensor) and (
        embedding.dtype not in (torch.float32, torch.bfloat16) or embedding.device.type != "cpu"
    ):
        raise ValueError(
            f"the embedding must be in float32 or bfloat16 on the CPU, got {embedding.dtype} on"
            f" {embedding.device}"
        )
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
    if len(draft_tokens.unique()) != len(draft_tokens):
        raise ValueError("draft tokens must differ from each other")


class HeadSession:
    """One text of a ``NativeHead``: its committed rows, and drafts behind them.

    Row t holds the target's states at place t and the token at place t + 1. Use it in one thread.

    Attributes:
        length: committed rows.
    """

    def __init__(self, head: NativeHead, ranks: int, temperature: float, key: int | None) -> None:
        self.head, self.length = head, 0
        self._library = library.library()
        self._handle = self._library.draftwood_head_new(byref(head.structure))
        # the structures that it reads live as long as the handle
        free = weakref.finalize(self, _free, self._library, self._handle, head)
        free.atexit = False
        self._tokens = (c_int64 * (MAX_ROWS * ranks))()
        self._log_probs = (c_float * (MAX_ROWS * ranks))()
        self._race_scores = (c_float * (MAX_ROWS * ranks))()
        self._found = structures.CSuccessors(
            ranks=ranks,
            is_drawn=key is not None and temperature > 0.0,
            temperature=temperature or 1.0,
            key=key or 0,
            tokens=self._tokens,
            log_probs=self._log_probs,
            race_scores=self._race_scores,
        )
        self._ranks, self._rows, self._tree = ranks, 0, None

    def take(
        self,
        features: Float[Tensor, "rows reads dim"] | Sequence[Float[Tensor, "nodes dim"]],
        tokens: Sequence[int],
        path: Sequence[int] | None = None,
        place: int = 0,
    ) -> Found:
        """Append committed rows, in the place of what was drafted; successors of the last one.

        Args:
            features: the target's states, in float32 or bfloat16 on the CPU: those of all layers
                side by side, or as a forward pass gives them, a tensor of each layer.
            tokens: the token behind each row; the last one is the newest of the text.
            path: rows of ``features`` that are taken, in order; None takes all.
            place: number of the next draw, the one behind the newest token.
        """
        odd = self._library.draftwood_head_take(
            *self._taken(features, tokens, path, place), threads()
        )
        self._check(odd, tokens, len(tokens))
        return self._read(1)

    def level(self, parents: Sequence[int], tokens: Sequence[int]) -> Found:
        """Append drafted rows; their successors.

        Args:
            parents: of each the drafted row that it follows, counted from 0 since the last
                ``take``; -1 for the last committed row.
            tokens: of each.
        """
        count = len(tokens)
        if not 0 < count <= MAX_ROWS or len(parents) != count:
            raise ValueError(
                f"a level has 1 to {MAX_ROWS} tokens with a parent each, got {count} and"
                f" {len(parents)}"
            )
        odd = self._library.draftwood_head_level(
            self._handle,
            (c_int64 * count)(*parents),
            (c_int64 * count)(*tokens),
            count,
            self._found,
            threads(),
        )
        if odd >= 0 and 0 <= tokens[odd] < self.head.target_vocabulary:
            raise ValueError(f"row {parents[odd]} is not there to be drafted from; take() first")
        self._check(odd, tokens, 0)
        return self._read(count)

    def draft(
        self,
        features: Float[Tensor, "rows reads dim"] | Sequence[Float[Tensor, "nodes dim"]],
        tokens: Sequence[int],
        max_nodes: int,
        depth: int,
        width: int = 4,
        path: Sequence[int] | None = None,
        place: int = 0,
        race_spread: float = 0.7,
    ) -> DraftedNodes:
        """``take``, then a tree behind the newest token, in one call.

        Of each level the likeliest nodes are read, and of all that was found the likeliest paths
        stay (EAGLE-2: Li et al. 2024, arXiv:2406.16858).

        Args:
            max_nodes: of the tree, without its root.
            depth: most levels.
            width: most nodes of a level that are read.
            race_spread: by how much the target's log-probabilities differ from the head's, where
                the next draws are raced: the smaller, the likelier the head's winner is the
                target's.
        """
        if race_spread <= 0.0:
            raise ValueError(f"race_spread must be above 0, got {race_spread}")
        if min(max_nodes, depth, width) < 1 or width > MAX_ROWS:
            raise ValueError(
                f"a tree has nodes, levels and a width of at least 1 and at most {MAX_ROWS}, got"
                f" {max_nodes}, {depth} and {width}"
            )
        tree = self._room(max_nodes)
        tree.depth, tree.width, tree.race_spread = depth, width, race_spread
        taken = self._taken(features, tokens, path, place)
        odd = self._library.draftwood_head_draft(*taken, tree, threads())
        self._check(odd, tokens, len(tokens))
        size = 1 + tree.nodes
        return DraftedNodes(tree.tokens[:size], tree.parents[:size], tree.log_probs[:size])

    def keep(self, length: int) -> None:
        """Drop what was drafted, and all committed rows from this one on."""
        self.length, self._rows = min(self.length, length), 0
        self._library.draftwood_head_keep(self._handle, self.length)

    def states(self) -> Float[Tensor, "rows dim"]:
        """What the rows of the last call give to their children."""
        return self._copy(self._found.states, self.head.shape.hidden)

    def logits(self) -> Float[Tensor, "rows draft_vocab"]:
        """Logits of the draft vocabulary behind the rows of the last call."""
        return self._copy(self._found.logits, self.head.vocab_size)

    def _copy(self, address: int | None, width: int) -> Tensor:
        if not self._rows:
            return torch.empty(0, width)
        numbers = (c_float * (self._rows * width)).from_address(address or 0)
        return torch.frombuffer(numbers, dtype=torch.float32).clone().view(self._rows, width)

    def _room(self, max_nodes: int) -> structures.CHeadTree:
        if self._tree is None or self._tree.max_nodes != max_nodes:
            size = 1 + max_nodes
            self._tree = structures.CHeadTree(
                max_nodes=max_nodes,
                tokens=(c_int64 * size)(),
                parents=(c_int64 * size)(),
                log_probs=(c_float * size)(),
            )
        return self._tree

    def _taken(
        self,
        features: Tensor | Sequence[Tensor],
        tokens: Sequence[int],
        path: Sequence[int] | None,
        place: int,
    ) -> tuple[object, ...]:
        """What the library's functions that take rows are called with."""
        layers = features.unbind(1) if isinstance(features, Tensor) else features
        shape, first, count = self.head.shape, layers[0], len(tokens)
        if len(layers) != shape.reads or any(
            each.shape != first.shape
            or each.stride() != first.stride()
            or each.dtype != first.dtype
            for each in layers
        ):
            raise ValueError(f"states of {shape.reads} layers must come in one shape and type")
        if first.dtype not in (torch.float32, torch.bfloat16) or first.device.type != "cpu":
            raise ValueError(
                f"states must be in float32 or bfloat16 on the CPU, got {first.dtype} on"
                f" {first.device}"
            )
        if first.ndim != 2 or first.shape[1] != shape.hidden or first.stride(1) != 1:
            raise ValueError(f"states must be rows of {shape.hidden}, got {tuple(first.shape)}")
        rows = range(len(first)) if path is None else path
        if not count or len(rows) != count or not 0 <= min(rows) <= max(rows) < len(first):
            raise ValueError(
                f"each of {count} tokens needs a row of the {len(first)} states, got {len(rows)}"
            )
        self._found.place = place
        given = structures.CFusionInput(
            features=library.integers([each.data_ptr() for each in layers]),
            feature_rows=None if path is None else library.integers(path),
            feature_stride=first.stride(0),
            is_bfloat16=first.dtype == torch.bfloat16,
        )
        return self._handle, byref(given), library.integers(tokens), count, self._found

    def _check(self, odd: int, tokens: Sequence[int], taken: int) -> None:
        if odd >= 0:
            raise ValueError(
                f"token {tokens[odd]} is beyond the vocabulary of {self.head.target_vocabulary}"
            )
        self.length += taken

    def _read(self, rows: int) -> Found:
        ranks, self._rows = self._ranks, rows
        parts = [slice(row * ranks, (row + 1) * ranks) for row in range(rows)]
        found = (self._tokens, self._log_probs, self._race_scores)
        return Found(*([each[part] for part in parts] for each in found))


def _free(compiled: ctypes.CDLL, handle: int, head: NativeHead) -> None:
    del head  # kept until now
    compiled.draftwood_head_free(handle)
