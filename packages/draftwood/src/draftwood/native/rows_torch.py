"""Functions of ``rows`` in PyTorch: for other types and devices, and where nothing compiled.

Shapes and results are those of the functions of the same names in ``rows``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 256


def topk(rows: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
    """The places of the ``count`` largest of each row, of equal ones the first.

    The best of every 256 entries are found first; only the blocks that hold the winners are then
    sorted. That takes a fraction of the time of a top-k over the whole of a large vocabulary.
    """
    vocab = rows.shape[-1]
    if vocab < 2 * _BLOCK * count:
        return _first(rows, count)
    in_blocks = vocab // _BLOCK * _BLOCK
    blocks = rows[:, :in_blocks].unflatten(-1, (-1, _BLOCK))
    # a winner is in one of these blocks, or in the rest after the last block
    best = _first(_maxima(blocks), count).sort().values
    inside = blocks[torch.arange(len(rows), device=rows.device)[:, None], best].flatten(1)
    left = torch.cat([inside, rows[:, in_blocks:]], dim=-1)
    winners = _first(left if left.dtype == torch.float64 else left.float(), count)
    block = best.gather(-1, (winners // _BLOCK).clamp(max=count - 1))
    after = winners - count * _BLOCK
    return torch.where(after >= 0, in_blocks + after, block * _BLOCK + winners % _BLOCK)


def _first(values: Float[Tensor, "rows values"], count: int) -> Int[Tensor, "rows {count}"]:
    """Places of the largest; ``torch.topk`` would take any of equal ones."""
    if count == 1:
        return values.argmax(-1, keepdim=True)
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _maxima(blocks: Float[Tensor, "rows blocks size"]) -> Float[Tensor, "rows blocks"]:
    """The largest of each block.

    Processors compare 16-bit integers many at a time but 16-bit floats one by one. Positive floats
    have the order of their bits; where all of a block are negative the order is reversed.
    """
    if blocks.dtype not in (torch.bfloat16, torch.float16) or blocks.device.type != "cpu":
        return blocks.amax(-1)
    bits = blocks.view(torch.int16)
    largest = bits.amax(-1)
    return torch.where(largest >= 0, largest, bits.amin(-1)).view(blocks.dtype)


def topk_probs(
    logits: Float[Tensor, "rows vocab"], count: int, temperature: float
) -> tuple[Int[Tensor, "rows {count}"], Float[Tensor, "rows {count}"]]:
    """The ``count`` most likely tokens of each row, and their probabilities at a temperature."""
    tokens = topk(logits, count)
    scores = logits.float() / temperature
    return tokens, (scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)).exp()


def softmax(logits: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "rows vocab"]:
    """The probabilities of these logits, in their own type."""
    return (logits / temperature).softmax(-1)


def sample_inverse_cdf(
    weights: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, "rows count"], distinct: bool
) -> Int[Tensor, "rows count"]:
    """Tokens at which the cumulative weight exceeds a uniform's share of the total.

    Weights are summed in blocks first, so that each draw sums up the blocks and then one of them
    instead of the whole vocabulary. Sums are in 64 bits, so that rare tokens keep their weight.
    """
    (rows, vocab), count, device = weights.shape, uniforms.shape[1], weights.device
    uniforms = uniforms.to(device, non_blocking=True)
    sums = _block_sums(weights)
    drawn = torch.full((rows, count), -1, device=device)
    within = torch.arange(_BLOCK, device=device)
    for draw in range(count):
        cumulative = sums.cumsum(-1)
        share = uniforms[:, draw : draw + 1] * cumulative[:, -1:]
        block = torch.searchsorted(cumulative, share, right=True).clamp(max=sums.shape[-1] - 1)

        tokens = block * _BLOCK + within
        inside = weights.gather(-1, tokens.clamp(max=vocab - 1)).double() * (tokens < vocab)
        if distinct and draw:
            inside = inside * (tokens[..., None] != drawn[:, None, :draw]).all(-1)

        rest = share - (cumulative - sums).gather(-1, block)
        place = torch.searchsorted(inside.cumsum(-1), rest.clamp(min=0.0), right=True)
        last = _BLOCK - 1 - (inside > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
        place = place.minimum(last)  # rounding may carry the share past the block's last token
        drawn[:, draw : draw + 1] = tokens.gather(-1, place).clamp(max=vocab - 1)

        if distinct:
            left = inside.scatter(-1, place, 0.0).sum(-1, keepdim=True)
            sums = sums.scatter(-1, block, left)
    return drawn


def _block_sums(weights: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows blocks"]:
    """The sum of every 256 weights, in 64 bits."""
    rows, vocab = weights.shape
    in_blocks = vocab // _BLOCK * _BLOCK
    sums = weights[:, :in_blocks].view(rows, -1, _BLOCK).sum(-1, dtype=torch.float64)
    if in_blocks == vocab:
        return sums
    rest = weights[:, in_blocks:].sum(-1, keepdim=True, dtype=torch.float64)
    return torch.cat([sums, rest], dim=-1)


def overlap(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"], divisor: float) -> float:
    """The sum of min(p / divisor, q)."""
    return float(torch.minimum(p / divisor, q).sum())


def gumbel_argmax(weights: Float[Tensor, " vocab"], key: tuple[int, int]) -> int:
    """The token whose noise over its weight is smallest; -1 where no weight is above 0."""
    rates = weights.double().cpu()
    token = int((rates / exponential_noise(torch.arange(len(rates)), key)).argmax())
    return token if rates[token] > 0.0 else -1


def exponential_noise(
    tokens: Int[Tensor, " tokens"], key: tuple[int, int]
) -> Float[Tensor, " tokens"]:
    """Exponential noise as ``native/noise.h`` computes it, in 64 bits."""
    first, second = key
    word = _scrambled((tokens + first) & 0xFFFFFFFF)
    high, low = _scrambled(word ^ second), _scrambled(word ^ (second ^ 0xFFFFFFFF))
    uniform = high.double() * 2.0**-32 + low.double() * 2.0**-64 + 2.0**-66
    return -torch.log1p(-uniform.clamp(max=1.0 - 2.0**-24))


def _scrambled(words: Int[Tensor, " words"]) -> Int[Tensor, " words"]:
    """32-bit words, each mixed so that near ones differ in every bit."""
    words = ((words ^ (words >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    words = ((words ^ (words >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return words ^ (words >> 16)
