"""Linear layers and embeddings of Transformers whose weights lie in the library's blocks."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from draftwood.native.matrix import Matrix
from draftwood.native.threads import torch_alone

FEW_ROWS = 32
"""Rows of a pass whose operations in PyTorch are worth no more than one thread."""


def on_one_thread(hf_model: Any, rows: int) -> AbstractContextManager[None]:
    """Keep PyTorch to one thread in a pass over few rows of a model whose layers are packed."""
    is_packed = hasattr(hf_model, "packed_as")
    return torch_alone() if is_packed and rows <= FEW_ROWS else nullcontext()


class PackedWeight(Tensor):
    """Weights of a packed module: any operation on them decodes them all, whereas their type, shape
    and device cost nothing. Models of Transformers read those in each pass.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    module: "PackedModule"

    @staticmethod
    def __new__(cls, module: "PackedModule") -> "PackedWeight":
        weight = Tensor._make_wrapper_subclass(cls, module.matrix.shape, dtype=torch.float32)
        weight.module = module
        return weight

    @classmethod
    def __torch_dispatch__(
        cls,
        operation: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = tree_map_only(cls, lambda weight: weight.module.floats(), (args, kwargs or {}))
        return operation(*given[0], **given[1])


class PackedModule(nn.Module):
    """Holds a matrix of the library; whoever computes with its weights gets them decoded.

    Args:
        matrix: [outputs inputs], which several modules may share.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def weight(self) -> PackedWeight:
        """All weights in float32, decoded by each operation on them."""
        return PackedWeight(self)

    def floats(self) -> Float[Tensor, "outputs inputs"]:
        """All weights in float32, made by each call."""
        return torch.from_numpy(self.matrix.floats())


class PackedLinear(PackedModule):
    """Multiplies rows by a matrix in the library, in the place of ``nn.Linear``.

    A row's product does not depend on the rows beside it.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.shape

    @property
    def bias(self) -> Float[Tensor, " outputs"] | None:
        """Numbers that are added to products."""
        return None if self.matrix.bias is None else torch.from_numpy(self.matrix.bias)

    def forward(self, rows: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        products = self.matrix.multiply(rows.reshape(-1, self.in_features))
        return products.view(*rows.shape[:-1], self.out_features).to(rows.dtype)


class PackedEmbedding(PackedModule):
    """Reads the rows of tokens from a matrix, in the place of ``nn.Embedding``."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.shape

    def forward(self, tokens: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens dim"]:
        rows: Any = torch.from_numpy(self.matrix.outputs(tokens.flatten()))
        return rows.view(*tokens.shape, self.embedding_dim)
