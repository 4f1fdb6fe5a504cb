"""CTC-drafter: frames side by side, trained on their collapsed text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.tree import DraftTree
from draftwood.validation import positive
from draftwood_torch.heads.ctc import CtcHead
from draftwood_train.ctc_losses import (
    ctc_loss,
    frame_loss,
    lk_loss,
    next_token_laws,
    paces,
    prefix_loss,
)
from draftwood_train.first_weights import add_nothing
from draftwood_train.losses import head_losses, kl
from draftwood_train.packed_frames import PackedFrames, drawn, in_order
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.unrolled import shifted

FRAME_LOSSES = ("ce", "kl")
"""Losses of each frame alone, which need no blank."""
NODES = 8  # of the tree that judges
JUDGED_EVERY = 8  # places


@dataclass(frozen=True)
class CtcRecipe:
    """CTC-drafter (Wen et al. 2024, arXiv:2412.00061), with stronger losses.

    The loss "ctc" is the paper's, "prefix" lets the text continue behind the label, "prefix+lk"
    adds the target's distribution after each of its first tokens. "ce" and "kl" train every frame
    alone and have no blank: on tokens, or on the target's distributions, as Medusa's heads here.

    A head begins as its linear frames with one state: a layer, further states and the pairwise term
    add nothing before they have learnt. So ``--from`` may name a head without them.
    """

    name: ClassVar[str] = "ctc"
    source: ClassVar[str] = "Wen et al. 2024, arXiv:2412.00061"
    gains: ClassVar[frozenset[str]] = frozenset({"form", "layers", "reads", "pairwise"})

    frames: int = field(default=8, metadata={"help": "places that it guesses at once"})
    label_length: int = field(
        default=5, metadata={"help": "most tokens of a label, with ctc and prefix losses"}
    )
    loss_name: Literal["ctc", "prefix", "prefix+lk", "ce", "kl"] = field(
        default="prefix+lk", metadata={"help": "what is made likely"}
    )
    form: Literal["layer", "linear"] = field(
        default="layer",
        metadata={"help": "what frames see: the context, or one state"},
    )
    layers: int = field(default=1, metadata={"help": "decoder layers of the frames"})
    features: Literal["last", "three"] = field(
        default="last", metadata={"help": "the final state alone, or with two earlier ones"}
    )
    pairwise: int = field(
        default=0, metadata={"help": "rank of a term between neighbouring frames; with ce or kl"}
    )
    paced: bool = field(
        default=False, metadata={"help": "whether ce or kl weighs places by what they are worth"}
    )
    reads_root: bool = field(
        default=True, metadata={"help": "whether rows read the token at the next place too"}
    )
    anchors: int = field(default=64, metadata={"help": "places of a row that are trained at once"})
    law_depth: int = field(default=3, metadata={"help": "prefixes that prefix+lk looks at"})
    law_weight: float = field(default=3.0, metadata={"help": "weight of lk in prefix+lk"})
    start_from: Literal["last-layer", "random"] = field(
        default="last-layer", metadata={"help": "the target's last layer, or random weights"}
    )

    def __post_init__(self) -> None:
        positive(
            "frames, label_length, anchors and law_depth",
            (self.frames, self.label_length, self.anchors, self.law_depth),
        )
        for name in ("pairwise", "law_weight"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} is a finite number from 0 on, got {getattr(self, name)}")
        require_words(self)
        if (self.pairwise or self.paced) and self.loss_name not in FRAME_LOSSES:
            raise ValueError(
                f"pairwise and paced go with the losses {' and '.join(FRAME_LOSSES)}, not with"
                f" {self.loss_name}; choose --loss-name kl"
            )
        self._require_read()
        if self.loss_name == "prefix+lk" and self.law_depth > self.label_length:
            raise ValueError(
                f"law_depth ({self.law_depth}) must be at most label_length ({self.label_length})"
            )

    def _require_read(self) -> None:
        """Raise ValueError for settings that the loss would not read."""
        unread = {
            *({"label_length"} if self.loss_name in FRAME_LOSSES else ()),
            *({"law_depth", "law_weight"} if self.loss_name != "prefix+lk" else ()),
        }
        for each in fields(self):
            if each.name in unread and getattr(self, each.name) != each.default:
                raise ValueError(
                    f"{each.name} does not go with the loss {self.loss_name}; leave it out, or"
                    " choose --loss-name prefix+lk"
                )

    def reads(self, layers: int) -> tuple[int, ...]:
        """The state after the final norm, or with it those of a low and a middle layer."""
        return (layers,) if self.features == "last" else (2, layers // 2, layers)

    def build(self, target: TargetWeights) -> nn.Module:
        """A new head."""
        config = CtcHead.config_type(
            target.sizes,
            form=self.form,
            frames=self.frames,
            reads=self.reads(target.layers),
            reads_root=self.reads_root,
            has_blank=self.loss_name not in FRAME_LOSSES,
            layers=self.layers,
            pairwise=self.pairwise,
        )
        head = CtcHead(config)
        if self.start_from == "last-layer":
            _start_from(head, target)
        _start_as_linear_frames(head)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The mean loss over drawn places, and its parts."""
        assert isinstance(head, CtcHead)
        alone = self.loss_name in FRAME_LOSSES
        labels, follows = _labels(rows, target, self.frames if alone else self.label_length)
        lengths = (follows & (labels >= 0)).long().cumprod(-1).sum(-1)
        chosen = drawn(lengths > 0, self.anchors)
        if not bool(chosen.any()):
            return torch.zeros((), device=labels.device, requires_grad=True), {}
        states = frame_states(head, rows, target, chosen)
        if self.pairwise:
            states = _with_neighbours(head, states, rows, target, chosen)
        if self.loss_name == "kl":
            counted = follows[chosen].long().cumprod(-1).bool()
            return self._divergence(states, rows, target, chosen, counted)
        log_probs = head.log_probs(states, target.head)
        with torch.autocast(labels.device.type, enabled=False):
            return self._losses(log_probs, labels, lengths, chosen, rows, target)

    def _divergence(
        self,
        states: Float[Tensor, "anchors frames dim"],
        rows: PackedRows,
        target: TargetWeights,
        chosen: Bool[Tensor, "rows places"],
        counted: Bool[Tensor, "anchors frames"],
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The mean divergence of frames from the target's distributions given all before them."""
        row, at = _places(chosen, self.frames)
        where = row[counted], at[counted]
        losses, overlaps = head_losses(
            states[counted], rows.final[where], rows.log_normalizer[where], target.head, kl
        )
        weights = torch.ones_like(losses)
        if self.paced:
            confidences = overlaps.new_zeros(counted.shape).masked_scatter(counted, overlaps)
            weights = paces(confidences)[counted]
        loss = (weights * losses).sum() / weights.sum()
        return loss, {"kl": float(loss.detach()), "overlap": float(overlaps.mean())}

    def _losses(
        self,
        log_probs: Float[Tensor, "anchors frames symbols"],
        labels: Int[Tensor, "rows places length"],
        lengths: Int[Tensor, "rows places"],
        chosen: Bool[Tensor, "rows places"],
        rows: PackedRows,
        target: TargetWeights,
    ) -> tuple[Tensor, Mapping[str, float]]:
        labels, lengths = labels[chosen].clamp(min=0), lengths[chosen]
        ce = partial(frame_loss, paced=self.paced)
        kind: Any = {"ctc": ctc_loss, "ce": ce}.get(self.loss_name, prefix_loss)
        loss = kind(log_probs, labels, lengths)
        figures = {self.loss_name.split("+")[0]: float(loss.detach())}
        if self.loss_name == "prefix+lk":
            laws = next_token_laws(log_probs, labels, self.law_depth)
            wanted, known = _target_laws(rows, target, chosen, self.law_depth)
            known &= torch.arange(self.law_depth, device=lengths.device) < lengths[:, None]
            known &= laws.detach().sum(-1) > 0.5
            lk = lk_loss(wanted[known], laws[known])
            figures["lk"] = float(lk.detach())
            loss = loss + self.law_weight * lk
        return loss, figures

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Count the tokens that trees of the most probable prefixes would emit."""
        chosen, labels = judged_places(rows, target, self.frames)
        places = int(chosen.sum())
        if not places:
            return Judged(0, {"block_efficiency": 0.0, "first_guess": 0.0})
        assert isinstance(head, CtcHead)
        states = frame_states(head, rows, target, chosen)
        probs, texts = head.log_probs(states, target.head).exp(), labels.tolist()
        with torch.autocast("cpu", enabled=False):
            tree = reader(head, target)
            accepted = [
                self._accepted(tree(each, NODES), text)
                for each, text in zip(probs.cpu(), texts, strict=True)
            ]
        tokens = float(sum(depth + 1 for depth, _ in accepted))
        first = float(sum(right for _, right in accepted))
        return Judged(places, {"block_efficiency": tokens, "first_guess": first})

    def _accepted(self, tree: DraftTree, text: list[int]) -> tuple[int, bool]:
        """Number of the text's tokens in the tree, and whether its first node is one of them."""
        return depth_of(text, tree), tree.token_list[1:2] == text[:1]


@torch.no_grad()
def _start_as_linear_frames(head: CtcHead) -> None:
    """Let layers and further states add nothing at first; a pairwise term does so by itself."""
    if len(head.config.reads) > 1:
        head.fc.weight.zero_()
    if head.config.form == "layer":
        add_nothing([head, *head.deeper])


@torch.no_grad()
def _start_from(head: CtcHead, target: TargetWeights) -> None:
    """Give a head the weights of the target's last layer and final norm, as far as they fit."""
    if target.final_norm is not None:
        head.norm.weight.copy_(target.final_norm)
    own = head.state_dict()
    for name, weight in (target.last_layers[-1] if target.last_layers else {}).items():
        if name in own and own[name].shape == weight.shape:
            own[name].copy_(weight)


def reader(head: CtcHead, target: TargetWeights) -> Callable[[Tensor, int], DraftTree]:
    """A reader of a place's frames, given as probabilities: their tree of so many nodes."""
    embedded = functional.embedding(target.draft_tokens, target.embedding)
    pairs = head.pairs(
        embedded, lambda states: functional.linear(states, target.head.to(states.dtype))
    )
    return lambda probs, nodes: head.tree(probs, pairs, nodes)


def judged_places(
    rows: PackedRows, target: TargetWeights, frames: int, every: int = JUDGED_EVERY
) -> tuple[Bool[Tensor, "rows places"], Int[Tensor, "anchors depth"]]:
    """Choose places of greedy answers to judge by.

    Args:
        frames: places that are drafted at once.
        every: of so many places one is judged.

    Returns:
        The places, and the tokens behind the root of each as places in the draft vocabulary, -1
        where a token is none of it, or none of the answer.
    """
    labels, follows = _labels(rows, target, min(NODES, frames))
    labels = labels.masked_fill(~follows.long().cumprod(-1).bool(), -1)
    possible = follows[..., 0] & rows.is_greedy
    chosen = possible & ((possible.long().cumsum(-1) - 1) % every == 0)
    return chosen, labels[chosen]


def depth_of(text: list[int], tree: DraftTree) -> int:
    """Number of a text's first tokens that a tree holds."""
    node = 0
    for depth, token in enumerate(text):
        node = next((n for n in tree.children[node] if tree.token_list[n] == token), -1)
        if node < 0:
            return depth
    return len(text)


def _labels(
    rows: PackedRows, target: TargetWeights, length: int
) -> tuple[Int[Tensor, "rows places length"], Bool[Tensor, "rows places length"]]:
    """Tokens behind the root of each place, as places in the draft vocabulary, and whether they are
    part of the same text's answer.
    """
    index = target.draft_index[rows.tokens]
    labels, follows = [], []
    for ahead in range(2, length + 2):
        labels.append(shifted(index, ahead, -1))
        same = shifted(rows.segments, ahead, -1) == rows.segments
        follows.append(same & shifted(rows.is_answer, ahead, False) & (rows.segments >= 0))
    return torch.stack(labels, dim=-1), torch.stack(follows, dim=-1)


def frame_states(
    head: CtcHead, rows: PackedRows, target: TargetWeights, chosen: Bool[Tensor, "rows places"]
) -> Float[Tensor, "anchors frames dim"]:
    """States of the frames at the chosen places, in their order, as the output head reads them."""
    count, dtype = head.config.frames, head.frame_weight.dtype
    order, real = in_order(chosen)
    embedded = functional.embedding(shifted(rows.tokens, 1), target.embedding)
    context = head.rows(head.combine(rows.states.to(dtype)), embedded.to(dtype))
    anchors = context.gather(1, order[..., None].expand(-1, -1, context.shape[-1]))
    places = torch.arange(context.shape[1], device=order.device)
    seen = (places <= order[..., None]) & (
        rows.segments[:, None] == rows.segments.gather(-1, order)[..., None]
    )
    at = rows.positions.gather(-1, order)[..., None] + 2
    at = (at + torch.arange(count, device=order.device)).flatten(1)
    positions = torch.cat([rows.positions, at], dim=-1)
    born = head.born(anchors).flatten(1, 2)
    states = head(context, born, positions, PackedFrames(count, seen))
    return states.unflatten(1, (-1, count))[real]


def _with_neighbours(
    head: CtcHead,
    states: Float[Tensor, "anchors frames dim"],
    rows: PackedRows,
    target: TargetWeights,
    chosen: Bool[Tensor, "rows places"],
) -> Float[Tensor, "anchors frames dim"]:
    """The frames' states, each but the first given the token of the frame before it."""
    row, at = _places(chosen, states.shape[1])
    at = at.clamp(max=rows.tokens.shape[1] - 1)
    before = functional.embedding(rows.tokens[row, at][:, 1:], target.embedding)
    terms = head.pairwise(before.to(head.frame_weight.dtype))
    return states + functional.pad(terms, (0, 0, 1, 0)).to(states.dtype)


def _places(
    chosen: Bool[Tensor, "rows places"], count: int
) -> tuple[Int[Tensor, "anchors {count}"], Int[Tensor, "anchors {count}"]]:
    """Rows and places of the token before each frame's, the root being the first; they may lie
    behind the end of a row.
    """
    row, place = chosen.nonzero().T
    at = place[:, None] + 1 + torch.arange(count, device=place.device)
    return row[:, None].expand_as(at), at


def _target_laws(
    rows: PackedRows, target: TargetWeights, chosen: Bool[Tensor, "rows places"], depth: int
) -> tuple[Float[Tensor, "anchors {depth} vocab"], Bool[Tensor, "anchors {depth}"]]:
    """The target's probabilities of the draft vocabulary from the root of each place on, and
    whether there is a place.
    """
    row, at = _places(chosen, depth)
    known = at < rows.tokens.shape[1]
    at = at.clamp(max=rows.tokens.shape[1] - 1)
    logits = functional.linear(rows.final[row, at].to(target.head.dtype), target.head).float()
    return (logits - rows.log_normalizer[row, at, None].float()).exp(), known
