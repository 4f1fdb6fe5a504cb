"""Gated short convolutions, as LFM2 has them."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from draftwood_torch.recurrences.base import Ancestry, Recurrence, convolved


class ShortConvolution(Recurrence):
    """Reads a few rows back and has no other state."""

    title = "short convolution"

    def __init__(self, mixer: nn.Module, number: int) -> None:
        super().__init__(mixer, number)
        self.width, self.kernel = self.mixer.conv.in_channels, self.mixer.conv.kernel_size[0]

    def start(self) -> Tensor:
        return self.mixer.conv.weight.new_zeros(1, 0)

    def read(self, hidden: Tensor, in_prompt: bool) -> tuple[Tensor, Tensor]:
        factor, gate, values = self.mixer.in_proj(hidden).chunk(3, dim=-1)
        return factor * values, gate

    def scan(
        self, state: Tensor, rows: Float[Tensor, "batch all width"], ancestry: Ancestry
    ) -> tuple[Float[Tensor, "batch new outputs"], Callable[[], Tensor]]:
        outputs = convolved(self.mixer.conv, rows, ancestry)
        return outputs[:, outputs.shape[1] - ancestry.new :], lambda: state

    def write(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return self.mixer.out_proj(gate * outputs)
