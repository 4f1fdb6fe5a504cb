"""EAGLE heads and draft LMs run by the C++ library."""

from dataclasses import asdict

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.eagle import EagleConfig, EagleHead
from draftwood.heads.lm import LmConfig, LmHead
from draftwood.native import head as native
from draftwood.native.head import HeadProducts, HeadShape, NativeHead
from draftwood.native.matrix import Matrix


class NativeEagle(NativeHead):
    """An ``EagleHead`` or an ``LmHead`` as the library runs it; ``start()`` begins a text.

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
        head: EagleHead | LmHead,
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


def why_not(config: EagleConfig | LmConfig, products: HeadProducts = "int8") -> str | None:
    """Reason why the library cannot run such a head, as a clause; None where it can."""
    if isinstance(config, EagleConfig) and (config.feature_sampling or config.partial_alignment):
        return "the native head has no feature sampling; take method eagle"
    return native.why_not(shape_of(config), products)


def shape_of(config: EagleConfig | LmConfig) -> HeadShape:
    """Sizes and switches of the head in the library's form."""
    is_eagle = isinstance(config, EagleConfig)
    return HeadShape(
        **asdict(config.sizes),
        layers=config.layers,
        reads=len(config.reads),
        norms_features=is_eagle and config.norms_features,
        feeds_normed=is_eagle and config.feeds_normed,
        starts_normed=is_eagle and config.norm_before_residual,
        window=config.window,
    )
