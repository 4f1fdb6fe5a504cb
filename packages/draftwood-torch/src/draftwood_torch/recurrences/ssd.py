"""Structured state-space duality, as Mamba2 and its many kin have it (arXiv:2405.21060)."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood_torch.recurrences.base import Ancestry, Recurrence, accurate, convolved


class StateSpaceDuality(Recurrence):
    """A state that decays by a number per head and takes up an outer product per token.

    An output is a sum over ancestors, as attention without a softmax: the state's own share, and
    those of the rows since, each with the decay on the way from one to the other.
    """

    title = "state-space duality"

    def __init__(self, mixer: nn.Module, number: int) -> None:
        super().__init__(mixer, number)
        self.width, self.kernel = (
            self.mixer.conv_dim + self.mixer.num_heads,
            self.mixer.conv_kernel_size,
        )

    def start(self) -> Tensor:
        mixer = self.mixer
        return mixer.D.new_zeros(
            *(1, mixer.num_heads, mixer.head_dim, mixer.ssm_state_size),
            dtype=accurate(mixer.D.dtype),
        )

    def read(self, hidden: Tensor, in_prompt: bool) -> tuple[Tensor, Tensor]:
        """Limits of time steps hold in prompts alone: so it is in Transformers."""
        mixer = self.mixer
        hidden = hidden * getattr(mixer, "ssm_in_multiplier", 1.0)
        rows = mixer.in_proj(hidden) * getattr(mixer, "mup_vector", 1.0)
        gate, rows = rows.split([mixer.intermediate_size, self.width], dim=-1)
        steps = functional.softplus(rows[..., mixer.conv_dim :] + mixer.dt_bias)
        if in_prompt:
            steps = steps.clamp(*mixer.time_step_limit)
        rows[..., mixer.conv_dim :] = steps
        return rows, gate

    def scan(
        self, state: Tensor, rows: Float[Tensor, "batch all width"], ancestry: Ancestry
    ) -> tuple[Float[Tensor, "batch new outputs"], Callable[[], Tensor]]:
        values, writes, reads, steps = self._parts(rows, ancestry)
        sums = ancestry.sums(steps * -self.mixer.A_log.to(steps.dtype).exp())
        taken = values * steps.transpose(1, 2)[..., None]
        heads, new = self.mixer.num_heads, ancestry.new

        late = reads[:, :, reads.shape[2] - new :]
        shares = _for_heads(late @ writes.transpose(2, 3), heads) * ancestry.decays(sums, new)
        grouped = state.unflatten(1, (reads.shape[1], -1)).flatten(2, 3)
        old = (late @ grouped.transpose(2, 3)).unflatten(3, (-1, self.mixer.head_dim))
        old = old.transpose(2, 3).flatten(1, 2) * sums[:, :, -new:, None].exp()
        passed = values[:, :, -new:] * self.mixer.D[:, None, None]
        outputs = (shares @ taken + old + passed).transpose(1, 2).flatten(2)

        def after() -> Tensor:
            left = (sums[:, :, -1:] - sums).exp()[..., None]
            added = (taken * left).transpose(2, 3) @ _for_heads(writes, heads)
            return state * sums[:, :, -1, None, None].exp() + added

        return outputs.to(rows.dtype), after

    def _parts(self, rows: Tensor, ancestry: Ancestry) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values [batch heads rows dim], what writes and reads them [batch groups rows state], and
        time steps [batch rows heads].
        """
        mixer = self.mixer
        mixed = convolved(mixer.conv1d, rows[..., : mixer.conv_dim], ancestry)
        mixed = mixer.act(mixed).to(accurate(rows.dtype))
        states = mixer.n_groups * mixer.ssm_state_size
        values, writes, reads = mixed.split([mixer.intermediate_size, states, states], dim=-1)
        return (
            values.unflatten(-1, (mixer.num_heads, -1)).transpose(1, 2),
            writes.unflatten(-1, (mixer.n_groups, -1)).transpose(1, 2),
            reads.unflatten(-1, (mixer.n_groups, -1)).transpose(1, 2),
            rows[:, self.kernel - 1 :, mixer.conv_dim :].to(mixed.dtype),
        )

    def write(self, outputs: Tensor, gate: Tensor) -> Tensor:
        is_normed = getattr(self.mixer, "mamba_rms_norm", True)
        gated = self.mixer.norm(outputs, gate) if is_normed else outputs * functional.silu(gate)
        return self.mixer.out_proj(gated.to(gate.dtype))


def _for_heads(grouped: Float[Tensor, "batch groups *rest"], heads: int) -> Tensor:
    """For each head what its group has."""
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)
