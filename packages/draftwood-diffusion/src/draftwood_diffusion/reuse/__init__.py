"""Parts that say what passes keep of earlier ones, one file each source."""

from draftwood_diffusion.reuse.fast_dllm import DualCache, PrefixCache
from draftwood_diffusion.reuse.kept import Reuse
from draftwood_diffusion.reuse.none import NoReuse

REUSES: dict[str, type[Reuse]] = {each.name: each for each in (NoReuse, PrefixCache, DualCache)}
"""By name, the default first."""

__all__ = ["REUSES", "Reuse"]
