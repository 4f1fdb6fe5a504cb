"""Shapes of the tensors that a trained head is made of, by its settings."""

from draftwood.native.formats import HeadSizes


class TensorShapes(dict[str, tuple[int, ...]]):
    """Shapes by the names of a network's ``state_dict()``, part after part.

    Args:
        sizes: of the head's layers.
    """

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes

    def norm(self, *names: str) -> None:
        """Add the weights of norms of a state."""
        self.update({f"{name}.weight": (self.sizes.hidden,) for name in names})

    def matrix(self, name: str, outputs: int, inputs: int) -> None:
        """Add the weights of a linear map."""
        self[f"{name}.weight"] = outputs, inputs

    def layer(self, place: str = "", inputs: int | None = None, copies: int = 1) -> None:
        """Add a decoder layer.

        Args:
            place: of the layer in the network, with its point: the beginning of all its names.
            inputs: entries that attention reads; None for those of a state.
            copies: of the residual stream.
        """
        sizes, wide = self.sizes, inputs or self.sizes.hidden
        queries, keys = sizes.heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.norm(f"{place}input_layernorm", f"{place}post_attention_layernorm")
        self.matrix(f"{place}self_attn.q_proj", queries, wide)
        self.matrix(f"{place}self_attn.k_proj", keys, wide)
        self.matrix(f"{place}self_attn.v_proj", keys, wide)
        self.matrix(f"{place}self_attn.o_proj", sizes.hidden, queries)
        self.mlp(f"{place}mlp", copies)

    def mlp(self, place: str, copies: int = 1) -> None:
        """Add a gated network that gives ``copies`` states side by side."""
        hidden, inner = self.sizes.hidden, self.sizes.intermediate_size
        self.matrix(f"{place}.gate_proj", inner, hidden)
        self.matrix(f"{place}.up_proj", inner, hidden)
        self.matrix(f"{place}.down_proj", copies * hidden, inner)

    def pairwise(self, rank: int) -> None:
        """Add the term of low rank between neighbouring tokens."""
        self.matrix("pairwise.before_proj", rank, self.sizes.hidden)
        self.matrix("pairwise.after_proj", self.sizes.hidden, rank)
