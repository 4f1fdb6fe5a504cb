"""Hydra: heads side by side, each of which sees what was drafted before it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from draftwood_torch.heads.medusa import MedusaHead
from draftwood_train.medusa_heads import MedusaHeads
from draftwood_train.recipe import TargetWeights


@dataclass(frozen=True)
class HydraRecipe(MedusaHeads):
    """Hydra (Ankner et al. 2024, arXiv:2402.05109), behind the target's frozen output head."""

    name: ClassVar[str] = "hydra"
    source: ClassVar[str] = "Ankner et al. 2024, arXiv:2402.05109"

    def build(self, target: TargetWeights) -> nn.Module:
        """New heads, with random weights for tokens."""
        return MedusaHead(
            MedusaHead.config_type(
                target.sizes,
                heads=self.heads,
                reads=self.reads(target.layers),
                sees_drafted=True,
            )
        )
