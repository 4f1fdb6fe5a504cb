"""Losses over frames: of a whole text, of the beginning of one, or of what follows each frame."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from draftwood_train.losses import lk_hybrid

LEAST = -1e30
"""Logarithm of a probability of zero: finite, so that gradients are finite too."""


def ctc_loss(
    log_probs: Float[Tensor, "anchors frames symbols"],
    labels: Int[Tensor, "anchors places"],
    lengths: Int[Tensor, " anchors"],
) -> Float[Tensor, ""]:
    """Mean -log P_end of the labels: the frames emit the label and nothing else.

    Graves et al. 2006, as CTC-drafter trains (Wen et al. 2024, arXiv:2412.00061). A label too long
    for the frames counts as 0.

    Args:
        log_probs: the blank is the last symbol.
        labels: the tokens that follow, as places in the draft vocabulary; of each anchor the first
            ``lengths`` count.
    """
    count, frames, symbols = log_probs.shape
    losses = functional.ctc_loss(
        log_probs.float().transpose(0, 1),
        labels,
        torch.full((count,), frames, device=labels.device),
        lengths,
        blank=symbols - 1,
        reduction="none",
        zero_infinity=True,
    )
    return losses.mean()


def prefix_loss(
    log_probs: Float[Tensor, "anchors frames symbols"],
    labels: Int[Tensor, "anchors places"],
    lengths: Int[Tensor, " anchors"],
) -> Float[Tensor, ""]:
    """Mean -log P_pre of the labels: the frames emit the label, then anything.

    A text continues behind its label, where P_end would train the frames to emit blanks. A label
    too long for the frames is cut.
    """
    chances = log_weights(log_probs, labels)[2]
    possible = (chances.detach() > LEAST / 2).cumprod(-1).sum(-1) - 1
    return -chances.gather(-1, lengths.minimum(possible)[:, None]).mean()


def frame_loss(
    log_probs: Float[Tensor, "anchors frames symbols"],
    labels: Int[Tensor, "anchors places"],
    lengths: Int[Tensor, " anchors"],
    paced: bool = False,
) -> Float[Tensor, ""]:
    """Cross-entropy of frame d and the token at depth d, as the heads of Medusa are trained.

    Cai et al. 2024, arXiv:2401.10774, without weights that fall with depth.

    Args:
        paced: weigh places by ``paces``.
    """
    depth = min(log_probs.shape[1], labels.shape[1])
    scores = log_probs[:, :depth].gather(-1, labels[:, :depth, None])[..., 0]
    counted = torch.arange(depth, device=labels.device) < lengths[:, None]
    if not paced:
        return -scores[counted].mean()
    weights = paces(scores.detach().exp().masked_fill(~counted, 0.0)) * counted
    return -(weights * scores.masked_fill(~counted, 0.0)).sum() / weights.sum()


def paces(
    confidences: Float[Tensor, "anchors places"], smoothing: float = 0.1
) -> Float[Tensor, "anchors places"]:
    """Weights of places by the accepted length that they are worth (D-PACE).

    Place j counts for every draft that reaches it and goes on: the sum over m >= j of the product
    of the confidences up to m, each mixed with 1 by ``smoothing``.
    """
    reached = (smoothing + (1 - smoothing) * confidences).cumprod(-1)
    return reached.flip(-1).cumsum(-1).flip(-1)


def next_token_laws(
    log_probs: Float[Tensor, "anchors frames symbols"],
    labels: Int[Tensor, "anchors places"],
    depth: int,
) -> Float[Tensor, "anchors {depth} vocab"]:
    """Distributions of the next token, given that the frames said the label's first 0, 1, ...
    tokens.

    Rows are zeros where that is impossible.
    """
    given = labels[:, : depth - 1]
    weights, repeats, _, _ = (each[:, :depth] for each in log_weights(log_probs, given))
    scale = weights.detach().amax(-1, keepdim=True).clamp(min=LEAST / 2)
    weights, repeats = (weights - scale).exp(), (repeats - scale).exp()
    probs = log_probs[..., :-1].exp()
    laws = torch.einsum("nuf,nfk->nuk", weights, probs)
    if depth > 1:
        says = probs.gather(-1, given[:, None].expand(-1, probs.shape[1], -1)).transpose(1, 2)
        more = (says * (repeats - weights)[:, 1:]).sum(-1, keepdim=True)
        again = torch.zeros_like(laws[:, 1:]).scatter(-1, given[..., None], more)
        laws = laws + functional.pad(again, (0, 0, 1, 0))
    return laws / laws.sum(-1, keepdim=True).clamp(min=torch.finfo(laws.dtype).tiny)


def lk_loss(
    target: Float[Tensor, "rows vocab"], draft: Float[Tensor, "rows vocab"]
) -> Float[Tensor, ""]:
    """Mean ``lk_hybrid`` of two distributions that are given as probabilities.

    Args:
        target: probabilities of the draft vocabulary, which need not sum to 1.
        draft: likewise, summing to 1.
    """
    tiny = torch.finfo(draft.dtype).tiny
    likely = target / target.sum(-1, keepdim=True).clamp(min=tiny)
    ratio = likely.clamp(min=tiny).log() - draft.clamp(min=tiny).log()
    return lk_hybrid((likely * ratio).sum(-1), target.minimum(draft).sum(-1)).mean()


def log_weights(
    log_probs: Float[Tensor, "*batch frames symbols"], tokens: Int[Tensor, "*batch tokens"]
) -> tuple[
    Float[Tensor, "*batch prefixes frames"],
    Float[Tensor, "*batch prefixes frames"],
    Float[Tensor, "*batch prefixes"],
    Float[Tensor, "*batch prefixes"],
]:
    """Logarithms of all prefixes of texts at once, differentiable.

    A token's recursion over frames is linear, so it is one sum over the frames in which the token
    may have begun.

    Args:
        log_probs: of each symbol in each frame; the blank is the last symbol.
        tokens: of each text, any symbol but the blank.

    Returns:
        For every prefix, the empty one first: weights of the frames in what follows, the same for
        another token like its last, P_pre and P_end.
    """
    blank = log_probs[..., -1]
    before = functional.pad(blank.cumsum(-1), (1, 0))
    weights = repeats = before[..., :-1]
    found = [(weights, repeats, torch.zeros_like(before[..., 0]), before[..., -1])]
    for place in range(tokens.shape[-1]):
        token = tokens[..., place]
        says = log_probs.gather(-1, token[..., None, None].expand(*blank.shape, 1))[..., 0]
        again = (
            (token == tokens[..., place - 1])
            if place
            else torch.zeros_like(token, dtype=torch.bool)
        )
        begins = torch.where(again[..., None], repeats, weights)
        said = _accumulated(says, begins + says)
        # a run of blanks begins one frame after the token was said
        shifted = functional.pad(said[..., :-1], (1, 0), value=LEAST)
        silent = _accumulated(blank, shifted + blank)
        both = torch.logaddexp(said, silent)
        weights, repeats = (
            functional.pad(each[..., :-1], (1, 0), value=LEAST) for each in (both, silent)
        )
        found.append((weights, repeats, (begins + says).logsumexp(-1), both[..., -1]))
    every = [torch.stack(each, dim=-1) for each in zip(*found, strict=True)]
    return every[0].transpose(-1, -2), every[1].transpose(-1, -2), every[2], every[3]


def _accumulated(
    stays: Float[Tensor, "*batch frames"], enters: Float[Tensor, "*batch frames"]
) -> Float[Tensor, "*batch frames"]:
    """log x_t with x_t = exp(enters_t) + exp(stays_t) x_{t-1}, over all frames at once."""
    total = stays.cumsum(-1)
    frames = stays.shape[-1]
    later = torch.ones(frames, frames, dtype=torch.bool, device=stays.device).triu(1)
    paths = enters[..., None, :] + total[..., :, None] - total[..., None, :]
    return paths.masked_fill(later, LEAST).logsumexp(-1)
