"""MLPs of layers that are no plain ``GatedMLP``: without gates, with bounds, of several experts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder import Decoder, Expert, Experts
from draftwood_torch.lean.layer import GatedMLP
from draftwood_torch.lean.linear import ACTIVATIONS, Network, ToLinear


def mlp_of(decoder: Decoder, index: int, linear: ToLinear) -> Network:
    """Build the MLP of a layer as its family has it."""
    layer = decoder.layers[index]
    if layer.experts is None:
        assert layer.gate is not None
        assert layer.down is not None
        return _gated(decoder, Expert(layer.gate, layer.up, layer.down), linear)
    networks = [_gated(decoder, expert, linear) for expert in layer.experts.networks]
    shared = layer.experts.shared
    return Mixture(
        layer.experts, networks, None if shared is None else _gated(decoder, shared, linear)
    )


def _gated(decoder: Decoder, network: Expert, linear: ToLinear) -> Network:
    activation, scales = decoder.sizes.activation, decoder.scales
    if network.up is None:
        return UngatedMLP(network, activation, linear)
    if (scales.gate_slope, scales.gate_limit, scales.gated_shift) == (1.0, None, 0.0):
        return GatedMLP(network, activation, linear)
    return BoundedMLP(network, decoder, linear)


class BoundedMLP(GatedMLP):
    """A gated MLP within bounds, whose gate has a slope of its own (GPT-OSS)."""

    def __init__(self, network: Expert, decoder: Decoder, linear: ToLinear) -> None:
        super().__init__(network, decoder.sizes.activation, linear)
        self.scales = decoder.scales

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        gate, up = self.gate_up(rows).float().chunk(2, dim=-1)
        slope, limit = self.scales.gate_slope, self.scales.gate_limit
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        gate = self.activation(gate * slope) / slope
        return self.down(gate * (up + self.scales.gated_shift))


class UngatedMLP:
    """down(activation(up(rows)))."""

    def __init__(self, network: Expert, activation: str, linear: ToLinear) -> None:
        self.up, self.down = linear(network.gate), linear(network.down)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        return self.down(self.activation(self.up(rows).float()))


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several gated MLPs, of which only those are run that a row chose."""

    experts: Experts
    networks: list[Network]
    shared: Network | None = None

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        shares, chosen = self.choose(rows)
        mixed = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            own, place = torch.where(chosen == expert)
            mixed[own] += self.networks[expert](rows[own]) * shares[own, place, None]
        if self.shared is not None:
            gate = self.experts.shared_gate
            share = 1.0 if gate is None else functional.linear(rows, gate[None]).sigmoid()
            mixed += self.shared(rows) * share
        return mixed

    def choose(
        self, rows: Float[Tensor, "rows hidden"]
    ) -> tuple[Float[Tensor, "rows chosen"], Int[Tensor, "rows chosen"]]:
        """Shares and numbers of each row's experts."""
        experts, routing = self.experts, self.experts.routing
        products = functional.linear(rows, experts.router, experts.router_bias)
        shares = products.sigmoid() if routing.is_sigmoid else products.softmax(-1)
        bias = experts.choice_bias
        chosen = (shares if bias is None else shares + bias).topk(routing.per_row).indices
        kept = shares.gather(-1, chosen)
        if routing.sums_to_one:
            kept = kept / (kept.sum(-1, keepdim=True) + routing.sum_epsilon)
        return kept * routing.scale, chosen
