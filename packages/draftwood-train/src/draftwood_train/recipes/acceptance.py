"""An acceptance head of a draft LM, which learns how likely the LM's tokens are accepted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.validation import positive
from draftwood_torch.heads.lm import LmHead
from draftwood_train.judging import JUDGED_STEPS, judged_steps
from draftwood_train.losses import CHUNK
from draftwood_train.recipe import Judged, PackedRows, TargetWeights
from draftwood_train.recipes.lm import states_of_rows
from draftwood_train.unrolled import predicted_places, shifted


@dataclass(frozen=True)
class AcceptanceRecipe:
    """SpecDec++'s head (Huang et al. 2024, arXiv:2405.19715) on a frozen draft LM.

    At each place of the target's text X the LM draws a token Y; its label is the chance that the
    target accepts it, min(1, p(Y) / q(Y)). The LM then reads a text that takes each token from X
    with chance ``kept`` and from Y otherwise, and the head learns at those from Y, with a binary
    cross-entropy that counts the chance of a rejection ``rejection`` times.
    """

    name: ClassVar[str] = "acceptance"
    source: ClassVar[str] = "Huang et al. 2024, arXiv:2405.19715"
    gains: ClassVar[frozenset[str]] = frozenset({"acceptance"})
    needs_start: ClassVar[str] = "a draft LM, made with 'draftwood train lm'"
    judged_by: ClassVar[str] = "skill"

    layers: int = field(default=1, metadata={"help": "decoder layers of the draft LM"})
    window: int = field(default=2048, metadata={"help": "newest rows that a row of the LM sees"})
    blocks: int = field(default=3, metadata={"help": "residual blocks of the head"})
    rejection: float = field(default=6.0, metadata={"help": "weight of rejections"})
    kept: float = field(default=0.15, metadata={"help": "share of the target's own tokens"})

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.layers < 1:
            raise ValueError("a draft LM has at least one layer, and its acceptance head a block")
        positive("window", (self.window,))
        if not (self.rejection > 0 and 0 <= self.kept < 1):
            raise ValueError(
                f"rejection must be above 0 and kept from 0 to below 1, got {self.rejection} and"
                f" {self.kept}"
            )

    def reads(self, layers: int) -> tuple[int, ...]:
        return ()

    def build(self, target: TargetWeights) -> nn.Module:
        """The draft LM, frozen, and a new head, which gives every token the same chance."""
        config = LmHead.config_type(target.sizes, self.layers, self.window, self.blocks)
        head = LmHead(config).requires_grad_(False)
        nn.init.zeros_(head.acceptance.out.weight)
        head.acceptance.requires_grad_(True)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        logits, labels = self._predicted(head, rows, target)
        loss = weighted_loss(logits, labels, self.rejection)
        return loss, {"accepted": float(labels.mean()) if len(labels) else 0.0}

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Judge the head by the share of a constant's loss that it saves; and the LM as it is."""
        with torch.random.fork_rng([rows.tokens.device] if rows.tokens.is_cuda else []):
            torch.manual_seed(0)
            logits, labels = self._predicted(head, rows, target)
        states = states_of_rows(head, rows, target)
        levels = [shifted(states, ahead) for ahead in range(1, JUDGED_STEPS + 1)]
        judged = judged_steps(levels, rows, target)
        skill = skill_of(logits, labels, self.rejection)
        return replace(
            judged,
            figures={**judged.figures, "skill": len(labels) * skill},
            counts={**judged.counts, "skill": len(labels)},
        )

    def _predicted(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights
    ) -> tuple[Float[Tensor, " drafted"], Float[Tensor, " drafted"]]:
        """Logits of the head at drafted tokens, and their chances."""
        assert isinstance(head, LmHead)
        with torch.no_grad():
            drawn, labels, counts = drafts(head, rows, target)
            counts &= torch.rand(counts.shape, device=counts.device) >= self.kept
            mixed = torch.where(counts, drawn, rows.tokens)
            states = states_of_rows(head, rows, target, mixed)
        return head.acceptance(states[counts].float()), labels[counts]


def drafts(
    head: LmHead, rows: PackedRows, target: TargetWeights
) -> tuple[Int[Tensor, "rows places"], Float[Tensor, "rows places"], Bool[Tensor, "rows places"]]:
    """Draw the LM's token at each place of a text, given the target's tokens before it.

    Returns:
        The tokens, their chances of being accepted, and the places that have one: those of answers.
    """
    states = states_of_rows(head, rows, target)
    follows = shifted(rows.segments, 1, -2) == rows.segments
    before = predicted_places(rows.is_answer, rows.segments) & follows
    places, chances = drawn_tokens(
        *(states[before], rows.final[before], rows.log_normalizer[before], target.head)
    )
    tokens, labels = rows.tokens.clone(), torch.zeros_like(rows.log_normalizer)
    row, place = before.nonzero().T
    tokens[row, place + 1] = target.draft_tokens[places]
    labels[row, place + 1] = chances.to(labels.dtype)
    counts = torch.zeros_like(before)
    counts[row, place + 1] = True
    return tokens, labels, counts


def drawn_tokens(
    states: Float[Tensor, "rows dim"],
    final: Float[Tensor, "rows dim"],
    log_normalizer: Float[Tensor, " rows"],
    head: Float[Tensor, "vocab dim"],
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Draw from q, and give each token's min(1, p / q); as places in the draft vocabulary."""
    tokens, chances = [], []
    with torch.autocast(states.device.type, enabled=False):
        parts = (each.split(CHUNK) for each in (states, final, log_normalizer))
        for own, true, normalizer in zip(*parts, strict=True):
            log_q = functional.linear(own.to(head.dtype), head).float().log_softmax(-1)
            log_p = functional.linear(true.to(head.dtype), head).float() - normalizer[:, None]
            drawn = torch.multinomial(log_q.exp(), 1)
            tokens.append(drawn[:, 0])
            chances.append((log_p - log_q).gather(1, drawn)[:, 0].exp().clamp(max=1.0))
    if not tokens:
        return torch.zeros(0, dtype=torch.long, device=head.device), final.new_zeros(0)
    return torch.cat(tokens), torch.cat(chances)


def weighted_loss(
    logits: Float[Tensor, " rows"], labels: Float[Tensor, " rows"], rejection: float
) -> Tensor:
    """Mean binary cross-entropy of soft labels, rejections counted ``rejection`` times."""
    losses = -(labels * functional.logsigmoid(logits))
    losses = losses - rejection * (1 - labels) * functional.logsigmoid(-logits)
    return losses.sum() / max(len(losses), 1)


def skill_of(
    logits: Float[Tensor, " rows"], labels: Float[Tensor, " rows"], rejection: float
) -> float:
    """Share of the best constant's loss that predictions save; 0 for one that knows nothing."""
    if not len(labels):
        return 0.0
    accepted, rejected = labels.mean(), rejection * (1 - labels.mean())
    constant = torch.logit((accepted / (accepted + rejected)).clamp(1e-6, 1 - 1e-6))
    worst = weighted_loss(constant.expand_as(logits), labels, rejection)
    return float(1 - weighted_loss(logits, labels, rejection) / worst.clamp(min=1e-9))
