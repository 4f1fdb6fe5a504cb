"""SpecDec's drafter: a query for each of the next places, over a decoder of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.kinds import config_type
from draftwood.heads.lattice import Unmerged
from draftwood.heads.prefix_search import likeliest_prefixes
from draftwood.validation import positive
from draftwood_torch.heads.networks import new_network
from draftwood_train.first_weights import copy_last_layers
from draftwood_train.losses import head_losses, kl
from draftwood_train.packed_frames import PackedFrames, drawn, in_order
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.recipes.ctc import NODES, depth_of, judged_places
from draftwood_train.unrolled import Unrolled, predicted_places, shifted


@dataclass(frozen=True)
class SpecdecRecipe:
    """SpecDec's independent drafter (Xia et al. 2022, arXiv:2203.16487).

    Each query learns the target's distribution at its own place, given all tokens before it. The
    paper trains on the target's tokens, of which a part is shown (glancing); distributions say
    more at the same data, and all that is drafted stays hidden, as in decoding.
    """

    name: ClassVar[str] = "specdec"
    source: ClassVar[str] = "Xia et al. 2022, arXiv:2203.16487"

    layers: int = field(default=1, metadata={"help": "decoder layers that read the text"})
    queries: int = field(
        default=5, metadata={"help": "places that it drafts at once, by a query each"}
    )
    shares_query: bool = field(
        default=False, metadata={"help": "whether all places share one query (a control)"}
    )
    anchors: int = field(default=64, metadata={"help": "places of a row that are trained at once"})
    start_from: Literal["last-layers", "random"] = field(
        default="last-layers", metadata={"help": "the target's last layers, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest rows that a row sees"})

    def __post_init__(self) -> None:
        positive("queries, anchors and window", (self.queries, self.anchors, self.window))
        require_words(self)

    @property
    def newest(self) -> int:
        """Newest layers of the target that it starts from."""
        return self.layers + 1 if self.start_from == "last-layers" else 0

    def reads(self, layers: int) -> tuple[int, ...]:
        return ()

    def build(self, target: TargetWeights) -> nn.Module:
        head: Any = new_network(
            config_type("specdec")(
                target.sizes, self.layers, self.queries, self.shares_query, self.window
            )
        )
        if self.start_from == "last-layers":
            copy_last_layers(head, [*head.layers, head.drafting], target)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The mean divergence over drawn places, and the overlap of each query."""
        counts = predicted_places(rows.is_answer, rows.segments)
        chosen = drawn(counts, self.anchors)
        if not bool(chosen.any()):
            return torch.zeros((), requires_grad=True), {}
        states, kept = place_states(head, rows, target, chosen), chosen.nonzero().T
        total, figures = rows.final.new_zeros((), dtype=torch.float32), {}
        for ahead in range(self.queries):
            same = shifted(rows.segments, ahead, -2) == rows.segments
            known = (same & shifted(counts, ahead, False))[tuple(kept)]
            where = kept[0][known], kept[1][known] + ahead
            losses, overlaps = head_losses(
                states[known, ahead], rows.final[where], rows.log_normalizer[where], target.head, kl
            )
            count = max(len(losses), 1)
            total = total + losses.sum() / count / self.queries
            figures[f"overlap_{ahead + 1}"] = float(overlaps.sum()) / count
        return total, figures

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Count the tokens that trees of the likeliest nodes would emit."""
        drafter: Any = head
        before, labels = judged_places(rows, target, drafter.config.places)
        chosen = functional.pad(before[:, :-1], (1, 0))  # the root's place is the next one
        if not bool(chosen.any()):
            return Judged(0, {"block_efficiency": 0.0, "guess_1": 0.0})
        states = place_states(head, rows, target, chosen)
        probs = functional.linear(states.float(), target.head.float()).softmax(-1)
        trees = [likeliest_prefixes(Unmerged(each, has_blank=False), NODES) for each in probs]
        texts = labels.tolist()
        depths = [depth_of(text, tree) for text, tree in zip(texts, trees, strict=True)]
        first = [tree.token_list[1:2] == text[:1] for text, tree in zip(texts, trees, strict=True)]
        return Judged(
            len(depths),
            {"block_efficiency": float(sum(depths) + len(depths)), "guess_1": float(sum(first))},
        )


def place_states(
    head: Any, rows: PackedRows, target: TargetWeights, chosen: Bool[Tensor, "rows places"]
) -> Float[Tensor, "anchors queries dim"]:
    """States behind the queries of the chosen places, in their order."""
    count, window = head.config.places, head.config.window
    order, real = in_order(chosen)
    attend = Unrolled(rows.segments, window)
    attend.next_step()
    embedded = functional.embedding(rows.tokens, target.embedding).to(head.proj.weight.dtype)
    text = head.read(embedded, rows.positions, attend)
    places = torch.arange(rows.tokens.shape[1], device=order.device)
    back = order[..., None] - places
    seen = (back >= 0) & (back + 1 < (window or len(places) + 1))
    seen &= rows.segments[:, None] == rows.segments.gather(-1, order)[..., None]
    at = rows.positions.gather(-1, order)[..., None] + 1
    at = (at + torch.arange(count, device=order.device)).flatten(1)
    positions = torch.cat([rows.positions, at], dim=-1)
    states = head(text, positions, PackedFrames(count, seen), anchors=order.shape[1])
    return states.unflatten(1, (-1, count))[real]
