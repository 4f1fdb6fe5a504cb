"""The gated delta rule, as Qwen3-Next and Qwen3.5 have it (arXiv:2412.06464)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood_torch.recurrences.base import Ancestry, Recurrence, accurate, convolved


class GatedDeltaRule(Recurrence):
    """A state that decays, and in which a token replaces what stands under its key.

    What rows put there depends on what their ancestors put there: one triangular system per head,
    whose entries are those of ancestors alone.
    """

    title = "gated delta rule"

    def __init__(self, mixer: nn.Module, number: int) -> None:
        super().__init__(mixer, number)
        self.width = self.mixer.conv_dim + 2 * self.mixer.num_v_heads
        self.kernel = self.mixer.conv_kernel_size

    def start(self) -> Tensor:
        mixer = self.mixer
        return mixer.conv1d.weight.new_zeros(
            *(1, mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim),
            dtype=accurate(mixer.conv1d.weight.dtype),
        )

    def read(self, hidden: Tensor, in_prompt: bool) -> tuple[Tensor, Tensor]:
        mixer = self.mixer
        if hasattr(mixer, "in_proj_qkv"):
            rows = [mixer.in_proj_qkv(hidden), mixer.in_proj_b(hidden), mixer.in_proj_a(hidden)]
            return torch.cat(rows, dim=-1), mixer.in_proj_z(hidden)
        parts = mixer.fix_query_key_value_ordering(
            mixer.in_proj_qkvz(hidden), mixer.in_proj_ba(hidden)
        )
        query, key, value, gate = (part.flatten(2) for part in parts[:4])
        return torch.cat([query, key, value, *parts[4:]], dim=-1), gate

    def scan(
        self, state: Tensor, rows: Float[Tensor, "batch all width"], ancestry: Ancestry
    ) -> tuple[Float[Tensor, "batch new outputs"], Callable[[], Tensor]]:
        query, key, value, rate, steps = self._parts(rows, ancestry)
        sums = ancestry.sums(steps)
        decays, since = ancestry.decays(sums, sums.shape[2]), sums.exp()[..., None]
        # the diagonal is not read: it counts as one
        system = rate * (key @ key.transpose(2, 3)) * decays
        known = since * (key @ state)
        put = torch.linalg.solve_triangular(
            system, rate * (value - known), upper=False, unitriangular=True
        )
        query, new = query[:, :, -ancestry.new :], ancestry.new
        shares = (query @ key.transpose(2, 3)) * decays[:, :, -new:]
        outputs = shares @ put + since[:, :, -new:] * (query @ state)

        def after() -> Tensor:
            left = (sums[:, :, -1:] - sums).exp()[..., None]
            return state * since[:, :, -1:] + (key * left).transpose(2, 3) @ put

        return outputs.transpose(1, 2).flatten(2).to(rows.dtype), after

    def _parts(self, rows: Tensor, ancestry: Ancestry) -> tuple[Tensor, ...]:
        """Queries, keys and values [batch heads rows dim], the rates at which values are replaced
        [batch heads rows 1], and logarithms of decays [batch rows heads].
        """
        from transformers.activations import ACT2FN  # takes seconds to import

        mixer, dtype = self.mixer, accurate(rows.dtype)
        mixed = convolved(mixer.conv1d, rows[..., : mixer.conv_dim], ancestry)
        mixed = ACT2FN[mixer.activation](mixed).to(dtype)
        sizes = [mixer.key_dim, mixer.key_dim, mixer.value_dim]
        query, key, value = (
            part.unflatten(-1, (-1, dim)).transpose(1, 2)
            for part, dim in zip(
                mixed.split(sizes, dim=-1),
                (mixer.head_k_dim, mixer.head_k_dim, mixer.head_v_dim),
                strict=True,
            )
        )
        group = mixer.num_v_heads // mixer.num_k_heads
        query, key = (_unit(part).repeat_interleave(group, dim=1) for part in (query, key))
        rate, steps = rows[:, self.kernel - 1 :, mixer.conv_dim :].chunk(2, dim=-1)
        steps = functional.softplus(steps.to(dtype) + mixer.dt_bias)
        return (
            query * mixer.head_k_dim**-0.5,
            key,
            value,
            rate.sigmoid().to(dtype).transpose(1, 2)[..., None],
            steps * -mixer.A_log.to(dtype).exp(),
        )

    def write(self, outputs: Tensor, gate: Tensor) -> Tensor:
        dim = self.mixer.head_v_dim
        normed = self.mixer.norm(outputs.reshape(-1, dim), gate.reshape(-1, dim))
        return self.mixer.out_proj(normed.view(gate.shape))


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length one."""
    return vectors * torch.rsqrt((vectors * vectors).sum(dim=-1, keepdim=True) + 1e-6)
