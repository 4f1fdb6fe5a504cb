"""Continuous Speculative Decoding as its released code samples."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_images.continuous.cspd import Cspd


@dataclass(frozen=True)
class CspdReleased(Cspd):
    """CSpD without noise in the last step, whose densities it compares, and with wide ones.

    Described after the code that Wang et al. released with arXiv:2411.11925. Tokens are means of
    the last step. Both deviations are 42 times as wide where a token is judged, so that nearly each
    stands; the residual has its own.

    Differs from that code: there tokens come in random order and stay behind one that fails; here
    they are forgotten, as in ``Cspd``.
    """

    name: ClassVar[str] = "cspd-released"
    summary: ClassVar[str] = "the same without noise in the last step, densities 42 times as wide"
    factor: float = 42.0
    last_noise: bool = False
