"""The likeliest tokens of a row of logits, and rows that have none."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native.rows import searchable, topk, topk_probs


def likeliest(logits: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
    """The ``count`` likeliest tokens of each row, likeliest first; of equal ones the first, as
    ``argmax`` has it.

    In 32 and 64 bits NaN comes before all numbers, so that whoever looks at the first token finds
    it. The best of every 256 entries are found first; only the blocks that hold the winners are
    then sorted, which takes a fraction of the time of a top-k over the whole of a large vocabulary.
    """
    if searchable(logits):
        return topk(logits, count)
    vocab = logits.shape[-1]
    if vocab < 2 * _BLOCK * count:
        return _first(logits, count)
    whole = vocab // _BLOCK * _BLOCK
    blocks = logits[:, :whole].unflatten(-1, (-1, _BLOCK))
    # a token among the best is in these or behind all blocks
    best = _first(_maxima(blocks), count).sort().values
    inside = blocks[torch.arange(len(logits), device=logits.device)[:, None], best].flatten(1)
    left = torch.cat([inside, logits[:, whole:]], dim=-1)
    winners = _first(left if left.dtype == torch.float64 else left.float(), count)
    block = best.gather(-1, (winners // _BLOCK).clamp(max=count - 1))
    behind = winners >= count * _BLOCK
    return torch.where(behind, whole + winners - count * _BLOCK, block * _BLOCK + winners % _BLOCK)


def likeliest_probs(
    logits: Float[Tensor, "rows vocab"], count: int, temperature: float
) -> tuple[Int[Tensor, "rows {count}"], Float[Tensor, "rows {count}"]]:
    """The ``count`` likeliest tokens of each row, likeliest first, and their probabilities at a
    temperature.
    """
    if searchable(logits):
        return topk_probs(logits, count, temperature)
    tokens = likeliest(logits, count)
    scores = logits.float() / temperature
    return tokens, (scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)).exp()


_BLOCK = 256


def _first(values: Float[Tensor, "rows values"], count: int) -> Int[Tensor, "rows {count}"]:
    """Places of the largest; ``topk`` would take any of equal ones."""
    if count == 1:
        return values.argmax(-1, keepdim=True)
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _maxima(blocks: Float[Tensor, "rows blocks size"]) -> Float[Tensor, "rows blocks"]:
    """The largest of each block.

    Processors compare 16-bit integers many at a time but 16-bit floats one by one, and positive
    floats stand in the order of their bits; where all of a block are negative the order is
    reversed.
    """
    if blocks.dtype not in (torch.bfloat16, torch.float16) or blocks.device.type != "cpu":
        return blocks.amax(-1)
    bits = blocks.view(torch.int16)
    topk = bits.amax(-1)
    return torch.where(topk >= 0, topk, bits.amin(-1)).view(blocks.dtype)


def require_probs(
    row: Float[Tensor, " vocab"], logits: Float[Tensor, " vocab"], place: int
) -> None:
    """Raise ValueError where a sampler gave NaN: it does so for whole rows, so one look is enough.

    Args:
        row: what it gave.
        logits: what it was given.
        place: number of the token in the answer, from 1 on.
    """
    if not row[0] >= 0.0:
        raise undrawable(logits, place)


def undrawable(logits: Float[Tensor, " vocab"], place: int) -> ValueError:
    """The error that says why no token can be chosen after these logits."""
    if bool(logits.isnan().any()) or bool((logits == torch.inf).any()):
        what = (
            "the model's logits hold NaN or plus infinity: its weights are damaged, or the dtype is"
            " too small for it"
        )
    elif bool((logits == -torch.inf).all()):
        what = "the model's logits are all minus infinity: its weights are damaged"
    else:
        what = "logit_bias, a grammar or another logits processor leaves no token to choose from"
    return ValueError(f"token {place} of the text cannot be chosen: {what}")
