"""EAGLE heads, which continue the target's hidden states step by step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.eagle import EagleHead
from draftwood_train.judging import JUDGED_STEPS, judged_steps
from draftwood_train.losses import Loss, head_losses, loss_at
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.rejections import is_first, rejected
from draftwood_train.unrolled import (
    Unrolled,
    all_places,
    at_places,
    drawn_places,
    predicted_places,
    shifted,
)


@dataclass(frozen=True)
class DraftStep:
    """One draft step at all places, or at some.

    Attributes:
        states: input of the output head [rows places dim].
        fed: state that is fed back, likewise.
        target: offset of the place whose next token is predicted, from the row's own.
        counts: whether the predicted token is part of an answer [rows places].
        places: places of the rows, where they are not all of them [rows places].
    """

    states: Tensor
    fed: Tensor
    target: int
    counts: Tensor
    places: Tensor | None = None

    def of(self, values: Tensor) -> Tensor:
        """Values of the predicted places, of values at all places."""
        return at_places(shifted(values, self.target), self.places)


@dataclass(frozen=True)
class EagleRecipe:
    """A decoder layer over the target's states and the next token's embedding.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840) with the norms of EAGLE-3.1 (arXiv:2605.09992): it
    drafts on from its own states in training too, and learns from the target's distributions alone.
    The variant ``eagle-1`` learns to continue the states themselves (Li et al. 2024,
    arXiv:2401.15077): it reads the last one only, and the loss compares states and, a tenth of it,
    distributions. ``fspad`` does so too, with a state for each of the two (Gui et al. 2024,
    arXiv:2408.15562).
    """

    name: ClassVar[str] = "eagle"
    source: ClassVar[str] = "Li et al. 2025, arXiv:2503.01840"

    layers: int = field(default=1, metadata={"help": "decoder layers of the head"})
    width: int = field(
        default=0, metadata={"help": "of the layers' MLP; 0 for that of the target's layers"}
    )
    heads: int = field(
        default=0, metadata={"help": "of the layers' attention; 0 for as many as the target's"}
    )
    features: Literal["three", "two"] = field(
        default="three",
        metadata={"help": "states that EAGLE-3 reads: early, middle and late, or no early one"},
    )
    unroll: int = field(default=3, metadata={"help": "draft steps in a row, one being easier"})
    unroll_from: float = field(
        default=2 / 3, metadata={"help": "share of the training that has one draft step alone"}
    )
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares its distributions with the target's"},
    )
    variant: Literal["eagle-3", "eagle-1", "fspad"] = field(
        default="eagle-3", metadata={"help": "which states it reads, and what it learns"}
    )
    noise: float = field(
        default=0.05, metadata={"help": "noise on the target's states, as a share of their size"}
    )
    start_from: Literal["last-layer", "random"] = field(
        default="random", metadata={"help": "the target's last layers, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest rows that a row sees"})
    later_share: float = field(
        default=1.0, metadata={"help": "share of the places that later draft steps are trained at"}
    )
    sampled_rows: int = field(
        default=0,
        metadata={"help": "unlikely tokens drawn for the loss beside all likely ones, 0 for all"},
    )
    lk_from: float = field(
        default=1.0, metadata={"help": "share of the training behind which the loss is lk-hybrid"}
    )
    prompts: bool = field(
        default=False, metadata={"help": "whether it learns from prompts too, not answers alone"}
    )
    replay: float = field(
        default=0.0,
        metadata={"help": "share of the training, at its end, that repeats rejected drafts"},
    )

    def __post_init__(self) -> None:
        if not 0 < self.later_share <= 1:
            raise ValueError(f"later_share is more than 0, at most 1, got {self.later_share}")
        for name in ("unroll_from", "lk_from", "replay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, got {getattr(self, name)}")
        for name in ("noise", "sampled_rows"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is 0 or more, got {getattr(self, name)}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is 1 or more, got {self.window}")
        if self.width < 0 or self.width % 32:
            raise ValueError(f"width is a multiple of 32, or 0 for the target's, got {self.width}")
        if self.heads < 0:
            raise ValueError(f"heads are 1 or more, or 0 for the target's, got {self.heads}")
        if self.features != "three" and self.variant != "eagle-3":
            raise ValueError(
                f"{self.variant} reads the last state alone; leave out --features, or take eagle-3"
            )
        if self.unroll < 1 or self.layers < 1:
            raise ValueError("an EAGLE head has at least one layer and is trained for one step")
        require_words(self)

    @property
    def newest(self) -> int:
        """Newest layers of the target that it starts from."""
        return self.layers if self.start_from == "last-layer" else 0

    def reads(self, layers: int) -> tuple[int, ...]:
        if self.variant != "eagle-3":
            return (layers,)
        if layers < 6:
            raise ValueError(f"EAGLE-3 reads layers of 6 or more, the target has {layers}")
        early = {2} if self.features == "three" else set[int]()
        return tuple(sorted(early | {layers // 2, layers - 3}))

    def build(self, target: TargetWeights) -> nn.Module:
        is_fspad = self.variant == "fspad"
        config = EagleHead.config_type(
            sizes=self._sizes(target),
            layers=self.layers,
            reads=self.reads(target.layers),
            norms_features=self.variant == "eagle-3",
            feeds_normed=not is_fspad,
            window=self.window,
            feature_sampling=is_fspad,
            partial_alignment=is_fspad,
        )
        head = EagleHead(config)
        if self.start_from == "last-layer":
            start_from(head, target)
        if self.variant != "eagle-3":
            nn.init.eye_(head.fc.weight)
            head.fc.requires_grad_(False)  # a drafted state takes the place of what it reads
        return head

    def _sizes(self, target: TargetWeights) -> HeadSizes:
        sizes = target.sizes
        if not self.width and not self.heads:
            return sizes
        if self.start_from == "last-layer":
            raise ValueError(
                "a layer of the target's comes with its own sizes; leave out --width and --heads"
            )
        if self.heads % sizes.num_kv_heads:
            raise ValueError(
                f"--heads shares the {sizes.num_kv_heads} heads of keys and values of the target's"
                f" layers, so give a multiple of {sizes.num_kv_heads}, not {self.heads}"
            )
        width, heads = self.width or sizes.intermediate_size, self.heads or sizes.heads
        return replace(sizes, intermediate_size=width, heads=heads)

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        assert isinstance(head, EagleHead)
        loss = loss_at(self.loss_name, self.lk_from, progress)
        if self.prompts:
            rows = _with_prompts(rows)
        if progress >= 1 - self.replay:
            return self._replayed(head, rows, target, loss)
        steps = self.unroll if progress >= self.unroll_from else 1
        total, figures = rows.final.new_zeros((), dtype=torch.float32), {}
        chosen = drawn_places(_counts_later(rows, steps), self.later_share) if steps > 1 else None
        for number, step in enumerate(self._unrolled(head, rows, target, steps, chosen)):
            each, overlap = self._step_loss(step, rows, target, loss)
            total = total + each / steps
            figures[f"overlap_{number + 1}"] = overlap
        return total, figures

    def _replayed(
        self, head: EagleHead, rows: PackedRows, target: TargetWeights, loss: Loss
    ) -> tuple[Tensor, Mapping[str, float]]:
        """Mean of two losses: of first steps everywhere, and of drafts that decoding would reject.

        Decoding is replayed on the texts at hand with the head as it is (after Draft-OPD,
        arXiv:2605.29343); where a draft differs from the text, the target's distribution there is
        what it learns.
        """
        failed = self._rejected(head, rows, target)
        later = all_places(failed[1:].any(0))
        total, count = rows.final.new_zeros((), dtype=torch.float32), max(int(failed.sum()), 1)
        figures = {"rejected": float(count)}
        for number, step in enumerate(self._unrolled(head, rows, target, len(failed), later)):
            here = replace(step, counts=step.counts & at_places(failed[number], step.places))
            each, _ = self._step_loss(here, rows, target, loss)
            total = total + each * int(here.counts.sum()) / count
            if number == 0:
                everywhere, figures["overlap_1"] = self._step_loss(step, rows, target, loss)
                total = total + everywhere
        return total / 2, figures

    @torch.no_grad()
    def _rejected(self, head: EagleHead, rows: PackedRows, target: TargetWeights) -> Tensor:
        """Places and steps at which decoding would reject a draft [steps rows places]."""
        head.eval()  # without noise
        right, counts = [], []
        for step in self._unrolled(head, rows, target, self.unroll):
            known = shifted(rows.segments, step.target + 1, -2) == rows.segments
            tokens = shifted(rows.tokens, step.target + 1)
            counts.append(step.counts & known)
            right.append(is_first(step.states, tokens, counts[-1], target))
        head.train()
        return rejected(torch.stack(right), torch.stack(counts), rows)

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        assert isinstance(head, EagleHead)
        steps = self._unrolled(head, rows, target, JUDGED_STEPS)
        return judged_steps([step.states for step in steps], rows, target, head.own_rows)

    def _unrolled(
        self,
        head: EagleHead,
        rows: PackedRows,
        target: TargetWeights,
        steps: int,
        chosen: Tensor | None = None,
    ) -> Iterator[DraftStep]:
        """Draft steps in a row, those behind the first at the chosen places alone."""
        features = rows.states.float()
        if head.training and self.noise:
            size = features.pow(2).mean(-1, keepdim=True).sqrt()
            features = features + self.noise * size * torch.randn_like(features)
        state = head.combine(features).float()
        attend, places = Unrolled(rows.segments, head.config.window), None
        for number in range(steps):
            ahead = number + 1
            if number == 1 and chosen is not None:
                places, state = chosen, at_places(state, chosen)
            tokens = at_places(shifted(rows.tokens, ahead), places)
            embedded = functional.embedding(tokens, target.embedding).float()
            attend.next_step(places)
            positions = at_places(rows.positions, places) + number
            state, normed = head(embedded, state, positions, attend)
            counts = at_places(_counts(rows, ahead), places)
            yield DraftStep(normed, state, ahead, counts, places)

    def _step_loss(
        self, step: DraftStep, rows: PackedRows, target: TargetWeights, loss: Loss
    ) -> tuple[Tensor, float]:
        counts = step.counts
        states, final = step.states[counts], step.of(rows.final)[counts]
        normalizer = step.of(rows.log_normalizer)[counts]
        losses, overlaps = head_losses(
            states, final, normalizer, target.head, loss, self.sampled_rows
        )
        count = max(len(losses), 1)
        mean, overlap = losses.sum() / count, float(overlaps.sum()) / count
        if self.variant != "eagle-3":
            own, wanted = step.fed[counts].float(), final.float()
            features = functional.smooth_l1_loss(own, wanted, reduction="sum")
            mean = features / max(own.numel(), 1) + 0.1 * mean
        return mean, overlap


def _with_prompts(rows: PackedRows) -> PackedRows:
    """Take prompts for answers.

    Raises:
        ValueError: for data that know the target's distributions at answers alone.
    """
    is_text = rows.segments >= 0
    if not bool(rows.log_normalizer[is_text].all()):
        raise ValueError(
            "these data know what the target says at answers alone; leave out --prompts, or make"
            " data with --states stored"
        )
    return replace(rows, is_answer=is_text)


def _counts(rows: PackedRows, ahead: int) -> Tensor:
    """True where the token that a draft step predicts is part of an answer [rows places]."""
    inside = shifted(rows.segments, ahead, -2) == rows.segments
    predicted = predicted_places(rows.is_answer, rows.segments)
    return inside & shifted(predicted, ahead, False)


def _counts_later(rows: PackedRows, steps: int) -> Tensor:
    """True where a draft step behind the first predicts a part of an answer [rows places]."""
    return torch.stack([_counts(rows, ahead) for ahead in range(2, steps + 1)]).any(0)


@torch.no_grad()
def start_from(head: EagleHead, target: TargetWeights) -> None:
    """Give a head the weights of the target's newest layers, as far as they fit.

    Queries, keys and values read the token beside the state; of the token they read nothing at
    first but what their random weights say.
    """
    count = len(head.config.reads)
    size = head.config.sizes.hidden
    if head.config.norms_features:
        # what comes out first is the newest of the states that it reads
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, (count - 1) * size :] += torch.eye(size)
    if target.final_norm is not None:
        head.norm.weight.copy_(target.final_norm)
    newest = target.last_layers[-len(head.layers) :]
    for layer, known in zip(reversed(head.layers), reversed(newest), strict=False):
        for name, weight in layer.named_parameters():
            given = known.get("input_layernorm.weight" if name == "hidden_norm.weight" else name)
            if given is None or (name == "input_layernorm.weight" and layer is head.layers[0]):
                continue
            if given.shape == weight.shape:
                weight.copy_(given)
            elif weight.dim() == 2 and weight.shape[1] == 2 * given.shape[1]:
                weight[:, given.shape[1] :].copy_(given)
