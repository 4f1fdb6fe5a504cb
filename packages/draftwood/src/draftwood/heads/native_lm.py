"""A draft LM run by the C++ library."""

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.lm import LmConfig, LmHead
from draftwood.native import head as native
from draftwood.native.head import HeadProducts, HeadShape, NativeHead
from draftwood.native.matrix import Matrix


class NativeLm(NativeHead):
    """An ``LmHead`` as the library runs it; ``start()`` begins a text.

    Args:
        head: whose weights are packed now; later changes of them are not seen.
        draft_tokens, lm_rows, embedding, embedding_scale, products, lm_products: see
            ``NativeHead``.

    Raises:
        ValueError: where it cannot be run so; see ``why_not``.
    """

    def __init__(
        self,
        head: LmHead,
        draft_tokens: Int[Tensor, " draft_vocab"],
        lm_rows: Float[Tensor, "draft_vocab dim"],
        embedding: Float[Tensor, "vocab dim"] | Matrix,
        embedding_scale: float = 1.0,
        products: HeadProducts = "int8",
        lm_products: HeadProducts | None = None,
    ) -> None:
        super().__init__(
            shape_of(head.config),
            head.state_dict(),
            draft_tokens,
            lm_rows,
            embedding,
            embedding_scale,
            products,
            lm_products,
        )


def why_not(config: LmConfig, products: HeadProducts = "int8") -> str | None:
    """Reason why the library cannot run such a head, as a clause; None where it can."""
    return native.why_not(shape_of(config), products)


def shape_of(config: LmConfig) -> HeadShape:
    """Sizes and switches of the head in the library's form."""
    sizes = config.sizes
    return HeadShape(
        hidden=sizes.hidden,
        intermediate_size=sizes.intermediate_size,
        heads=sizes.heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        rope_theta=sizes.rope_theta,
        epsilon=sizes.epsilon,
        layers=config.layers,
        reads=0,
        norms_features=False,
        feeds_normed=False,
        starts_normed=False,
        window=config.window,
    )
