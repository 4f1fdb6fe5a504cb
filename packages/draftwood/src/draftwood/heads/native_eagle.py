"""EAGLE heads and draft LMs run by the C++ library."""

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.eagle import EagleConfig, EagleHead
from draftwood.heads.lm import LmConfig, LmHead
from draftwood.native import head as native
from draftwood.native.head import HeadProducts, HeadShape, NativeHead
from draftwood.native.matrix import Matrix


class NativeEagle(NativeHead):
    """An ``EagleHead`` as the library runs it; ``start()`` begins a text.

    Args:
        head: whose weights are packed now; later changes of them are not seen.
        draft_tokens, lm_rows, embedding, embedding_scale, products, lm_products: see
            ``NativeHead``. Of a ``NativeModel`` as target they are ``lm_head.outputs(
            draft_tokens)``, ``embedding`` and ``embedding_scale`` of its ``weights``.

    Raises:
        ValueError: where it cannot be run so; see ``why_not``.
    """

    def __init__(
        self,
        head: EagleHead,
        draft_tokens: Int[Tensor, " draft_vocab"],
        lm_rows: Float[Tensor, "draft_vocab dim"],
        embedding: Float[Tensor, "vocab dim"] | Matrix,
        embedding_scale: float = 1.0,
        products: HeadProducts = "int8",
        lm_products: HeadProducts | None = None,
    ) -> None:
        if reason := why_not(head.config, products):
            raise ValueError(reason)
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
            _shape_of_lm(head.config),
            head.state_dict(),
            draft_tokens,
            lm_rows,
            embedding,
            embedding_scale,
            products,
            lm_products,
        )


def why_not(config: EagleConfig | LmConfig, products: HeadProducts = "int8") -> str | None:
    """Reason why the library cannot run such a head, as a clause; None where it can."""
    if isinstance(config, LmConfig):
        return native.why_not(_shape_of_lm(config), products)
    if config.feature_sampling or config.partial_alignment:
        return "the native head has no feature sampling; take method eagle"
    return native.why_not(shape_of(config), products)


def shape_of(config: EagleConfig) -> HeadShape:
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
        reads=len(config.reads),
        norms_features=config.norms_features,
        feeds_normed=config.feeds_normed,
        starts_normed=config.norm_before_residual,
        window=config.window,
    )


def _shape_of_lm(config: LmConfig) -> HeadShape:
    return HeadShape(
        hidden=config.sizes.hidden,
        intermediate_size=config.sizes.intermediate_size,
        heads=config.sizes.heads,
        num_kv_heads=config.sizes.num_kv_heads,
        head_dim=config.sizes.head_dim,
        rope_theta=config.sizes.rope_theta,
        epsilon=config.sizes.epsilon,
        layers=config.layers,
        reads=0,
        norms_features=False,
        feeds_normed=False,
        starts_normed=False,
        window=config.window,
    )
