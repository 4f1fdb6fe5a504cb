"""Compute and store a target's states: some layers at each place of a text, and a normaliser.

Stored states take 8 bits an entry, with a scale for each place and layer, and one for each entry.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from draftwood.models.model import Model, ModelOutput, ModelSession
from draftwood.native.rows import topk_probs
from draftwood_torch.tensors import as_tensor

PREFILL = 128
"""Places in one pass; logits of all of them are computed."""


@dataclass(frozen=True, eq=False)
class PlaceStates:
    """States in 8 bits, and logs of the normaliser, of some places in a row.

    Attributes:
        codes: entries between -127 and 127.
        scales: what an entry is multiplied with.
        log_normalizer: logsumexp of the logits over the whole vocabulary.
        spread: what it is multiplied with besides, at every place; None for 1.
    """

    codes: Int8[Tensor, "places layers dim"]
    scales: Float[Tensor, "places layers"]
    log_normalizer: Float[Tensor, " places"]
    spread: Float[Tensor, "layers dim"] | None = None

    def floats(self) -> Float[Tensor, "places layers dim"]:
        floats = self.codes.float() * self.scales[..., None]
        return floats if self.spread is None else floats * self.spread


def default_layers(layers: int) -> tuple[int, ...]:
    """Inputs of an early, a middle and a late layer as EAGLE-3 reads them, and the last state.

    From Li et al. 2025 (arXiv:2503.01840); fewer where the model has few layers.
    """
    wanted = {min(2, layers - 1), layers // 2, max(layers - 3, 0), layers}
    return tuple(sorted(wanted))


def bytes_per_token(layers: int, dim: int) -> int:
    """Bytes per token of stored states, with scales, normaliser and the token itself."""
    return layers * (dim + 4) + 4 + 4


def likeliest(
    logits: Float[Tensor, "rows vocab"],
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Most probable token of each row, and the log of the row's sum of exponentials."""
    best, _, normalizers = top_tokens(logits, 1)
    return best[:, 0], normalizers


def top_tokens(
    logits: Float[Tensor, "rows vocab"], count: int
) -> tuple[Int[Tensor, "rows {count}"], Float[Tensor, "rows {count}"], Float[Tensor, " rows"]]:
    """Most probable tokens of each row, their probabilities, and the log of its sum of
    exponentials.

    One pass over each row gives all three on the CPU, the last by the first one's probability.
    """
    if logits.device.type != "cpu":
        normalizers = logits.float().logsumexp(-1)
        best = logits.topk(count)
        return best.indices, (best.values.float() - normalizers[:, None]).exp(), normalizers
    found = topk_probs(logits.float().numpy(), count, 1.0)
    best, probabilities = map(torch.from_numpy, found)
    first = logits.gather(1, best[:, :1]).double() - probabilities[:, :1].double().log()
    return best, probabilities, first[:, 0].float()


def spread_of(model: Model, layers: Sequence[int]) -> Float[Tensor, "layers dim"]:
    """Size of each entry of a model's states, by drawn tokens.

    Some models have entries a thousand times larger than all others, at nearly every token (Sun et
    al. 2024, arXiv:2402.17762); beside these, steps that are even over a place round the others to
    nothing. Entries far below the usual size count as a quarter of it.
    """
    drawn = np.random.default_rng(0).integers(model.vocab_size, size=PREFILL)
    states = states_alone(model, torch.from_numpy(drawn), layers)[PREFILL // 8 :]
    size = states.square().mean(0).sqrt()
    usual = size.median(-1, keepdim=True).values
    return size.maximum(usual / 4).clamp(min=torch.finfo(torch.float32).tiny)


def in_bytes(
    states: Float[Tensor, "places layers dim"],
    log_normalizer: Float[Tensor, " places"],
    spread: Float[Tensor, "layers dim"] | None = None,
) -> PlaceStates:
    """Quantise each place and layer to 255 steps around 0, even ones where no spread is given."""
    states = states.float()
    if spread is not None:
        states = states / spread
    scales = states.abs().amax(-1) / 127
    steps = states / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    return PlaceStates(steps.round().to(torch.int8), scales, log_normalizer, spread)


def stacked(
    outputs: Sequence[ModelOutput], layers: Sequence[int]
) -> Float[Tensor, "rows layers dim"]:
    """The hidden states of a pass, sequence after sequence, on the CPU."""
    if not layers:
        return torch.empty(sum(len(each.logits) for each in outputs), 0, 0, dtype=torch.float32)
    joined = [torch.cat([as_tensor(each.hidden[n]) for each in outputs]) for n in layers]
    return torch.stack(joined, 1).cpu()


def rows_of(outputs: Sequence[ModelOutput]) -> Float[Tensor, "rows vocab"]:
    """Logits of outputs of a row each; not copied where they lie one after the other."""
    rows = [each.rows for each in outputs]
    begin, size = rows[0].ctypes.data, rows[0].nbytes
    if all(row.ctypes.data == begin + place * size for place, row in enumerate(rows)):
        shape = len(rows), rows[0].shape[1]
        return torch.from_numpy(as_strided(rows[0], shape, rows[0].strides))
    return torch.from_numpy(np.concatenate(rows))


def extend(
    session: ModelSession, tokens: Sequence[int], layers: Sequence[int]
) -> tuple[Float[Tensor, "places layers dim"], Float[Tensor, " places"], Float[Tensor, " vocab"]]:
    """Append tokens; states and normalisers at all, and logits behind the last, on the CPU."""
    states, normalizers, last = [], [], None
    for chunk in _chunks(tokens):
        output = session.extend(chunk, keep="all", hidden=tuple(layers))
        states.append(stacked([output], layers).float())
        normalizers.append(likeliest(output.logits.float())[1].cpu())
        last = output.logits[-1].cpu()
    if last is None:
        raise ValueError("there must be at least one token")
    return torch.cat(states), torch.cat(normalizers), last


def _chunks(tokens: Sequence[int]) -> list[Sequence[int]]:
    return [tokens[start : start + PREFILL] for start in range(0, len(tokens), PREFILL)]


def states_of(
    model: Model, tokens: Int[Tensor, " places"], layers: Sequence[int]
) -> tuple[Float[Tensor, "places layers dim"], Float[Tensor, " places"]]:
    """Run a pass over a whole text; states are those of decoding where rows keep their bits."""
    with closing(model.start()) as session:
        states, normalizers, _ = extend(session, tokens.tolist(), layers)
    return states, normalizers


def states_alone(
    model: Model, tokens: Int[Tensor, " places"], layers: Sequence[int]
) -> Float[Tensor, "places layers dim"]:
    """Run a pass over a whole text without the output head."""
    with closing(model.start()) as session:
        passes = [
            stacked([session.extend(chunk, "none", tuple(layers))], layers).float()
            for chunk in _chunks(tokens.tolist())
        ]
    return torch.cat(passes)
