"""Places outside a block are run once a block."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.reuse.kept import Reuse


@dataclass(frozen=True)
class PrefixCache(Reuse):
    """Fast-dLLM's prefix cache (Wu et al. 2025, arXiv:2505.22618): keys and values of prompt and
    finished blocks stay, within a block, as its first pass computed them. An approximation, as they
    would see each token that the block takes.
    """

    name: ClassVar[str] = "prefix-cache"
    summary: ClassVar[str] = "an approximation: what is before a block is run once a block"
    source: ClassVar[str] = "Fast-dLLM, Wu et al. 2025, arXiv:2505.22618"
    keeps_prefix: ClassVar[bool] = True


@dataclass(frozen=True)
class DualCache(PrefixCache):
    """Fast-dLLM's dual cache: masks behind the block stay as they were too."""

    name: ClassVar[str] = "dual-cache"
    summary: ClassVar[str] = "an approximation: what is outside a block is run once a block"
    keeps_suffix: ClassVar[bool] = True
