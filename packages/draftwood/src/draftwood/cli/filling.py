"""Options of commands for methods of packages that fill masks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click


@dataclass(frozen=True)
class Filling:
    """Options that masked-diffusion methods alone take.

    Attributes:
        mask_token, block_length, shifted: of the model, in the place of its own settings.
        show: whether the text is shown by the pass that fixed each token.
    """

    mask_token: int | None
    block_length: int | None
    shifted: bool | None
    show: bool

    @property
    def settings(self) -> dict[str, int]:
        """Settings of the model that are given, by their options."""
        given = {
            "--mask-token": self.mask_token,
            "--block-length": self.block_length,
            "--shifted": self.shifted,
        }
        return {name: value for name, value in given.items() if value is not None}

    def require_none(self) -> None:
        """Raise ValueError where one is given to another method."""
        if given := [*self.settings, *(["--show"] if self.show else [])]:
            raise ValueError(
                f"{given[0]} belongs to methods that fill masks, which 'draftwood methods --package"
                " diffusion' lists; name one with --method, or leave it out"
            )


def filling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options, which a command gets as ``filling``."""

    @click.option(
        "--mask-token",
        type=click.IntRange(0),
        metavar="TOKEN",
        help="Of a masked-diffusion model whose settings do not name it.",
    )
    @click.option(
        "--block-length",
        type=click.IntRange(1),
        metavar="N",
        help="Tokens that a masked-diffusion model fills together.  [default: the model's]",
    )
    @click.option(
        "--shifted/--unshifted",
        default=None,
        help="Whether it predicts a place from the row before it.  [default: the model's]",
    )
    @click.option(
        "--show",
        is_flag=True,
        help="Colour a masked-diffusion text by the pass that fixed each token.",
    )
    @wraps(command)
    def run(
        *given: Any,
        mask_token: int | None,
        block_length: int | None,
        shifted: bool | None,
        show: bool,
        **options: Any,
    ) -> Any:
        filling = Filling(mask_token, block_length, shifted, show)
        return command(*given, filling=filling, **options)

    return run
