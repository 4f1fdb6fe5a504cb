"""LongSpec: a head with a window of its own that reads the target's keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.kinds import config_type
from draftwood.validation import positive
from draftwood_torch.heads import layers
from draftwood_torch.heads.networks import new_network
from draftwood_train.first_weights import copy_last_layers
from draftwood_train.frozen_layers import normed
from draftwood_train.judging import JUDGED_STEPS, judged_steps
from draftwood_train.losses import LOSSES, head_losses
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.unrolled import Unrolled, predicted_places, shifted

KEYS, VALUES = "self_attn.k_proj", "self_attn.v_proj"
"""Matrices of the target that make what its cache holds."""
ANCHORS = 4
"""First places of a text, of which up to so many keep their positions."""


@dataclass(frozen=True)
class LongspecRecipe:
    """A head that reads the target's cache (LongSpec, Yang et al. 2025, arXiv:2502.17421).

    Anchor-offset positions: the first 0 to 4 tokens of a text keep theirs, all others move on
    together by a random number, so that short texts teach the head how far away the beginning of a
    long one is. Noisy reading: a row sees the target's keys as far back as a drafted node would,
    up to ``depth`` places before its own.

    Differs from the paper: keys and values are those of the third layer from the end, whose input
    training data store; only their positions move, as the target itself read the text where it is;
    it learns from the target's distributions.
    """

    name: ClassVar[str] = "longspec"
    source: ClassVar[str] = "Yang et al. 2025, arXiv:2502.17421"

    window: int = field(default=512, metadata={"help": "newest tokens that it keeps rows of"})
    longest: int = field(
        default=8192, metadata={"help": "positions up to which texts are moved; 0 moves none"}
    )
    depth: int = field(
        default=4, metadata={"help": "places before a row's own from which on it may see the cache"}
    )
    reads_cache: bool = field(
        default=True, metadata={"help": "whether it reads the target's cache (off is a control)"}
    )
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares its distributions with the target's"},
    )
    start_from: Literal["last-layer", "random"] = field(
        default="last-layer", metadata={"help": "the target's last layer, or random weights"}
    )

    def __post_init__(self) -> None:
        positive("window and depth", (self.window, self.depth))
        if self.longest < 0:
            raise ValueError(f"longest is a number of positions, or 0, not {self.longest}")
        require_words(self)

    def reads(self, layers: int) -> tuple[int, ...]:
        """The input of the layer whose keys and values are read."""
        return (max(0, layers - 3),)

    def build(self, target: TargetWeights) -> nn.Module:
        (layer,) = self.reads(target.layers)
        if self.reads_cache:
            _require_known_keys(target, layer)
        head = new_network(
            config_type("longspec")(target.sizes, layer, self.window, self.reads_cache)
        )
        if self.start_from == "last-layer":
            _start_from(head, target)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        counts = predicted_places(rows.is_answer, rows.segments)
        back = torch.randint(1, self.depth + 1, rows.tokens.shape, device=rows.tokens.device)
        positions = moved(rows, self.longest)
        states = _states(head, rows, target, positions, back)[counts]
        losses, overlaps = head_losses(
            states,
            rows.final[counts],
            rows.log_normalizer[counts],
            target.head,
            LOSSES[self.loss_name],
        )
        count = max(len(losses), 1)
        return losses.sum() / count, {"overlap_1": float(overlaps.sum()) / count}

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        levels = []
        for ahead in range(1, JUDGED_STEPS + 1):
            back = torch.full_like(rows.tokens, ahead)
            levels.append(shifted(_states(head, rows, target, rows.positions, back), ahead))
        return judged_steps(levels, rows, target)


def moved(rows: PackedRows, longest: int) -> Int[Tensor, "rows places"]:
    """Positions with an offset of each row's own behind its texts' first few places.

    The latest place then lies anywhere up to ``longest``.
    """
    shape, device = (len(rows.positions), 1), rows.positions.device
    room = (longest - 1 - rows.positions.amax(-1, keepdim=True)).clamp_min(0)
    offsets = (torch.rand(shape, device=device) * (room + 1)).long().clamp_max(room)
    anchors = torch.randint(0, ANCHORS + 1, shape, device=device)
    return rows.positions + offsets * (rows.positions >= anchors)


@torch.no_grad()
def target_cache(
    rows: PackedRows, target: TargetWeights, layer: int, positions: Int[Tensor, "rows places"]
) -> tuple[Float[Tensor, "rows kv_heads places dim"], Float[Tensor, "rows kv_heads places dim"]]:
    """The target's keys, rotated to these positions, and values of a layer whose input is stored.

    Raises:
        ValueError: where the layer's weights are unknown.
    """
    back, sizes = target.layers - layer, target.sizes
    known = target.last_layers[-back] if len(target.last_layers) >= back else {}
    if not known.keys() >= {"input_layernorm.weight", *(f"{KEYS}.weight", f"{VALUES}.weight")}:
        raise ValueError(
            f"longspec needs keys and values of the target's layer {layer}, whose weights are not"
            " known; train an EAGLE head for this target"
        )
    state = normed(rows.states[..., 0, :], known["input_layernorm.weight"], sizes.epsilon)
    keys, values = (
        functional.linear(state, known[f"{name}.weight"].float(), known.get(f"{name}.bias"))
        .unflatten(-1, (-1, sizes.head_dim))
        .transpose(-2, -3)
        for name in (KEYS, VALUES)
    )
    if "self_attn.k_norm.weight" in known:
        keys = normed(keys, known["self_attn.k_norm.weight"], sizes.epsilon)
    return layers.rotated(keys, positions, sizes.rope_theta), values


def _require_known_keys(target: TargetWeights, layer: int) -> None:
    """Raise ValueError for a layer whose keys ``target_cache`` does not make."""
    back = target.layers - layer
    other = target.other_keys[-back] if len(target.other_keys) >= back else None
    if other is not None:
        raise ValueError(
            f"longspec reads keys of the target's layer {layer}, which has {other}; train an EAGLE"
            " head for this target"
        )


def cache_seen(
    rows: PackedRows, back: Int[Tensor, "rows places"]
) -> Bool[Tensor, "rows places places"]:
    """Places of the target's cache that each row sees: of its text, at least ``back`` before it.

    The first rows of a text would see none; they see themselves, and no loss asks for them.
    """
    places = torch.arange(back.shape[1], device=back.device)
    far = places[:, None] - places
    seen = (far >= back[..., None]) & (rows.segments[:, :, None] == rows.segments[:, None, :])
    return seen | ((far == 0) & ~seen.any(-1, keepdim=True))


def _states(
    head: Any,
    rows: PackedRows,
    target: TargetWeights,
    positions: Int[Tensor, "rows places"],
    back: Int[Tensor, "rows places"],
) -> Float[Tensor, "rows places dim"]:
    attend = Unrolled(rows.segments, head.config.window)
    attend.next_step()
    embedded = functional.embedding(rows.tokens, target.embedding).float()
    if not head.config.reads_cache:
        return head(embedded, positions, attend, torch.zeros_like)
    keys, values = target_cache(rows, target, head.config.layer, positions)
    seen = cache_seen(rows, back)

    def read(query: Tensor) -> Tensor:
        return layers.attended(query, keys.to(query.dtype), values.to(query.dtype), seen)

    return head(embedded, positions, attend, read)


@torch.no_grad()
def _start_from(head: Any, target: TargetWeights) -> None:
    """Give a head the weights of the target's last layer, which reads its own window first; what
    it reads of the cache counts for nothing until it has learnt.
    """
    copy_last_layers(head, [head.layer], target)
    if head.config.reads_cache:
        head.cross_o_proj.weight.zero_()
