"""Examine a head in training's arithmetic: its labels, its layers, its vocabulary."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood_torch.heads.eagle import EagleHead
from draftwood_train.data.states import states_of
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.doctor.differences import Difference
from draftwood_train.doctor.texts import HeldText
from draftwood_train.judging import JUDGED_STEPS
from draftwood_train.losses import CHUNK
from draftwood_train.packing import RowPacking, TextPiece
from draftwood_train.recipe import PackedRows, TargetWeights
from draftwood_train.recipes.eagle import EagleRecipe

CLEARLY = 0.1
"""Share of places by which another reading must be better to be called the right one."""

EQUAL = 1e-3
"""Largest difference of shares that are the same but for the digits of a card."""

LEAST = 0.4
"""Share of any answers' tokens without which a draft vocabulary is of no use for them."""

FEWEST = 20
"""Places without which nothing is said of a head."""

SEARCHED = 4
"""Texts on which other layers are tried."""


def head_of(trained: TrainedHead, asker: str = "the doctor") -> EagleHead:
    """The network of an EAGLE head.

    Args:
        asker: what reads it, for the error.

    Raises:
        ValueError: for a head of another kind.
    """
    if trained.config.kind != "eagle":
        raise ValueError(
            f"{asker} reads EAGLE heads, not the kind {trained.config.kind!r}; see 'draftwood"
            " compare' for others"
        )
    return trained.network


def rows_of(text: StoredText, columns: Sequence[int], final: int) -> PackedRows:
    """A text as a row of training."""
    packing = RowPacking(TextsInMemory([text]), tuple(columns), final, len(text.tokens), 1, None)
    return packing.packed([[TextPiece(0, 0, len(text.tokens))]])


@torch.no_grad()
def guesses(
    head: EagleHead, rows: PackedRows, target: TargetWeights, steps: int = JUDGED_STEPS
) -> Int[Tensor, "steps places"]:
    """Places in the draft vocabulary of the likeliest tokens, draft steps in a row.

    Each step is fed with the true tokens, as in training.
    """
    weights = target.head if head.own_rows is None else head.own_rows
    exact = replace(target, embedding=target.embedding.float())
    found = []
    for step in EagleRecipe()._unrolled(head.eval(), rows, exact, steps):
        own = step.states[0].float()
        best = [functional.linear(part, weights.float()).argmax(-1) for part in own.split(CHUNK)]
        found.append(torch.cat(best))
    return torch.stack(found)


def first_guesses(
    head: EagleHead, text: StoredText, columns: Sequence[int], target: TargetWeights
) -> Int[Tensor, " places"]:
    """First guesses at the places of a text, which predict the token two places on."""
    return guesses(head, rows_of(text, columns, text.states.shape[1] - 1), target, 1)[0]


def hits(
    guessed: Int[Tensor, " places"], text: StoredText, target: TargetWeights, ahead: int, off: int
) -> tuple[int, int]:
    """Count guesses that are the token ``ahead`` places on, and the places looked at.

    Args:
        off: added to a guess's place in the draft vocabulary.
    """
    first, last = max(text.answer - 1, 0), len(text.tokens) - 3
    if last <= first:
        return 0, 0
    places = torch.arange(first, last)
    wanted = target.draft_index[text.tokens[places + ahead].long()]
    return int((guessed[places] + off == wanted).sum()), len(places)


def labels(
    head: EagleHead, texts: Sequence[HeldText], columns: Sequence[int], target: TargetWeights
) -> Difference | None:
    """Find a head whose first guess is the token of another place, or another token's number."""
    shares: dict[tuple[int, int], float] = {}
    guessed = [first_guesses(head, text.stored, columns, target) for text in texts]
    for ahead, off in ((2, 0), (1, 0), (3, 0), (2, -1), (2, 1)):
        pairs = [
            hits(own, text.stored, target, ahead, off)
            for own, text in zip(guessed, texts, strict=True)
        ]
        right, places = (sum(column) for column in zip(*pairs, strict=True))
        if places < FEWEST:
            return None
        shares[ahead, off] = right / places
    own = shares.pop((2, 0))
    (ahead, off), best = max(shares.items(), key=lambda pair: pair[1])
    if best <= own + CLEARLY:
        return None
    if off:
        says = f"first draft tokens are right in {own:.2f}, with ids {off:+d} off in {best:.2f}"
        return Difference("vocabulary", f"{says}; export the head again")
    says = (
        f"the first draft token is that {ahead} places on in {best:.2f}, the one two places on in"
        f" {own:.2f}"
    )
    if ahead == 1 and target.layers in head.config.reads:  # the state that foretells that token
        return Difference("little training", f"{says}, as its state says; train the head longer")
    cure = "train the head again with labels of the place behind its token"
    return Difference("shifted labels", f"{says}; {cure}")


def vocabulary(
    texts: Sequence[HeldText], target: TargetWeights, coverage: tuple[float, float] | None
) -> Difference | None:
    """Find a draft vocabulary that has less of the answers than its card says, or few of any.

    Args:
        coverage: of all held-out answers of the data it was trained on, now and by its card; None
            for other texts, of which no card tells.
    """
    if coverage is not None and coverage[0] < coverage[1] - EQUAL:
        found, promised = coverage
        says = (
            f"the draft vocabulary has {found:.3f} of the held-out answers' tokens, its card says"
            f" {promised:.3f}; copy the head's folder again"
        )
        return Difference("vocabulary", says)
    answers = torch.cat([text.stored.tokens[text.stored.answer :] for text in texts]).long()
    covered = float((target.draft_index[answers] >= 0).float().mean())
    if coverage is not None or len(answers) < FEWEST or covered >= LEAST:
        return None
    says = (
        f"the draft vocabulary has {covered:.2f} of these answers' tokens; import the head again,"
        " or train one on such texts"
    )
    return Difference("vocabulary", says)


def layers(
    head: EagleHead, texts: Sequence[HeldText], model: Model, target: TargetWeights
) -> Difference | None:
    """Find a head that drafts better from other layers than those it says it reads."""
    reads, found = head.config.reads, dict[tuple[int, ...], list[int]]()
    for text in texts[:SEARCHED]:
        with torch.no_grad():
            every, normalizers = states_of(model, text.stored.tokens, range(model.layers + 1))
        whole = replace(text.stored, states=every, log_normalizer=normalizers)
        for tried in neighbours(reads, model.layers):
            guessed = first_guesses(head, whole, tried, target)
            right, places = hits(guessed, whole, target, 2, 0)
            sums = found.setdefault(tried, [0, 0])
            sums[0], sums[1] = sums[0] + right, sums[1] + places
    if not found or found[reads][1] < FEWEST:
        return None
    shares = {tried: right / places for tried, (right, places) in found.items()}
    best = max(shares, key=lambda tried: (shares[tried], tried == reads))
    if shares[best] <= shares[reads] + CLEARLY:
        return None
    says = (
        f"the head says it reads layers {_listed(reads)} and is right in {shares[reads]:.2f}, with"
        f" {_listed(best)} in {shares[best]:.2f}; mend the reads of its config.json"
    )
    return Difference("layer", says)


def neighbours(reads: tuple[int, ...], layers: int) -> list[tuple[int, ...]]:
    """The layers, and those with one of them moved by up to two."""
    moved = [
        (*reads[:place], reads[place] + by, *reads[place + 1 :])
        for place in range(len(reads))
        for by in (-1, 1, -2, 2)
    ]
    return [reads, *(each for each in moved if min(each) >= 0 and max(each) <= layers)]


def _listed(reads: Sequence[int]) -> str:
    return ", ".join(map(str, reads))
