"""Nothing is kept that may change."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.reuse.kept import Reuse


@dataclass(frozen=True)
class NoReuse(Reuse):
    """Every pass is exact. Models whose blocks see only what was before keep finished blocks, which
    never change again (block diffusion, Arriola et al. 2025, arXiv:2503.09573).
    """

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "every pass is exact"
    source: ClassVar[str] = "Arriola et al. 2025, arXiv:2503.09573"
