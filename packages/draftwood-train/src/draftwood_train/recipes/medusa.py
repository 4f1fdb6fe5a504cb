"""Medusa: heads side by side, none of which sees the others' draft tokens."""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from draftwood_torch.heads.medusa import MedusaHead
from draftwood_train.medusa_heads import MedusaHeads
from draftwood_train.recipe import TargetWeights


@dataclass(frozen=True)
class MedusaRecipe(MedusaHeads):
    """Medusa (Cai et al. 2024, arXiv:2401.10774), behind the target's frozen output head."""

    name: ClassVar[str] = "medusa"
    source: ClassVar[str] = "Cai et al. 2024, arXiv:2401.10774"

    reads_root: bool = field(
        default=False,
        metadata={"help": "whether heads read the token at the next place, as other drafters do"},
    )

    def build(self, target: TargetWeights) -> nn.Module:
        """New heads, which at first predict the target's own next token."""
        return MedusaHead(
            MedusaHead.config_type(
                target.sizes,
                heads=self.heads,
                reads=self.reads(target.layers),
                reads_root=self.reads_root,
            )
        )
