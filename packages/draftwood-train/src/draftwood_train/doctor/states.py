"""Compare what training reads with what decoding has: prompts, and states place by place."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.models.model import Model
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.states import stacked
from draftwood_train.doctor.differences import Difference
from draftwood_train.doctor.texts import HeldText

PLACES = 24
"""Places of an answer that are decoded token by token."""

ROUNDED = 0.08
"""Largest distance of states that rounding to 8 bits explains, as a share of their size."""

ALIKE = 0.5
"""Largest distance of states that are the same but for their precision."""


def template(lm: LanguageModel, texts: Sequence[HeldText]) -> Difference | None:
    """Find the first prompt that decoding would give other tokens than training had."""
    for number, text in enumerate(texts):
        if text.prompt is None:
            continue
        had, today = text.stored.tokens[: text.stored.answer].tolist(), lm.encode(text.prompt)
        if had != today:
            pairs = zip(had, today, strict=False)
            same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(had), len(today)))
            return Difference(
                "template",
                f"the data have {len(had)} tokens of a prompt, decoding gives {len(today)}, first"
                f" {_named(lm, had, same)} and {_named(lm, today, same)}; make data with the"
                " template of today",
                number,
                same,
            )
    return None


def _named(lm: LanguageModel, tokens: list[int], place: int) -> str:
    return (
        repr(lm.tokenizer.decode(tokens[place : place + 1])) if place < len(tokens) else "no more"
    )


@torch.no_grad()
def decoded_states(
    model: Model, text: HeldText, layers: Sequence[int]
) -> Float[Tensor, "places layers dim"]:
    """States as decoding has them: the prompt at once, then token by token."""
    tokens, answer = text.stored.tokens.tolist(), max(text.stored.answer, 1)
    pieces = [tokens[:answer], *([token] for token in tokens[answer : answer + PLACES])]
    session, found = model.start(), []
    try:
        for piece in pieces:
            output = session.extend(piece, keep="all", hidden=tuple(layers))
            found.append(stacked([output], layers).float())
    finally:
        session.close()
    return torch.cat(found)


def distances(
    ours: Float[Tensor, "places dim"], theirs: Float[Tensor, "places dim"]
) -> Float[Tensor, " places"]:
    """Distance of states at each place as a share of their size."""
    return (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-9)


def states(model: Model, texts: Sequence[HeldText]) -> Difference | None:
    """Find the first place whose states in training differ from those of decoding, and why."""
    for number, text in enumerate(texts):
        every = decoded_states(model, text, range(model.layers + 1))
        had = text.stored.states[: len(every)].float()
        for column, layer in enumerate(text.layers):
            off = distances(had[:, column], every[:, layer])
            far = (off > ROUNDED).nonzero()[:, 0]
            if len(far) > len(off) // 8:
                return _explained(had[:, column], every, layer, number, int(far[0]))
    return None


def _explained(had: Tensor, every: Tensor, layer: int, number: int, place: int) -> Difference:
    """Name the layer and shift at which states agree, or their precision."""
    tries = {
        (other, shift): float(_shifted_distance(had, every[:, other], shift))
        for other in range(every.shape[1])
        for shift in (0, -1, 1)
    }
    (other, shift), off = min(tries.items(), key=lambda pair: (pair[1], pair[0] != (layer, 0)))
    own = tries[layer, 0]
    if off <= ROUNDED and shift:
        side = "later" if shift > 0 else "earlier"
        says = f"states of layer {layer} are those of the place {abs(shift)} {side}"
        return Difference("shifted labels", f"{says}; make the data again", number, place)
    if off <= ROUNDED and other != layer:
        says = f"what the data hold as layer {layer} is layer {other}; make the data again"
        return Difference("layer", says, number, place)
    if own <= ALIKE:
        says = (
            f"states of layer {layer} are {own:.2f} of their size apart, rounding explains"
            f" {ROUNDED}; make data with the --dtype that decoding uses"
        )
        return Difference("precision", says, number, place)
    says = f"states of layer {layer} are of no layer of this target; load the one that wrote them"
    return Difference("target", says, number, place)


def _shifted_distance(had: Tensor, theirs: Tensor, shift: int) -> Tensor:
    count = len(had) - abs(shift)
    first, other = max(-shift, 0), max(shift, 0)
    return distances(had[first : first + count], theirs[other : other + count]).median()
