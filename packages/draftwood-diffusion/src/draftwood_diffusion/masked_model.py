"""A model that fills masks: weights, and what must be known beside them."""

from dataclasses import dataclass

from draftwood.models.model import Model


@dataclass(frozen=True)
class DiffusionSettings:
    """Numbers that a masked-diffusion model was trained with.

    Attributes:
        mask_token: the token that stands for a place not yet written.
        block_length: tokens of a block.
        shifted: whether the row of place i - 1 predicts place i, as in a next-token model; else a
            mask's own row predicts its place.
        bidirectional: whether everything sees everything (LLaDA, Dream); else a block sees itself
            and the blocks before it, which never change again.

    Raises:
        ValueError: for a negative token, or a block without tokens.
    """

    mask_token: int
    block_length: int = 16
    shifted: bool = False
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if self.mask_token < 0:
            raise ValueError(
                f"a mask token is a token number from 0 on, not {self.mask_token}: take it from the"
                " model's config, or give it by --mask-token"
            )
        if self.block_length < 1:
            raise ValueError(f"a block has at least one token, not {self.block_length}")


@dataclass(frozen=True)
class MaskedModel:
    """Any model with the ability ``rows``, and the settings of its diffusion."""

    model: Model
    settings: DiffusionSettings
