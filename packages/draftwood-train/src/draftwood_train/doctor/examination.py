"""Examine a head: the first difference between training and decoding, and its acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftwood.heads.trained import TrainedHead
from draftwood.text.language_model import LanguageModel
from draftwood_train.by_kind import MEAN
from draftwood_train.card import Promises
from draftwood_train.doctor import head as heads
from draftwood_train.doctor import states
from draftwood_train.doctor.differences import Difference, Drafted
from draftwood_train.doctor.replay import Replay, drafts, replay
from draftwood_train.doctor.texts import HeldText
from draftwood_train.recipe import TargetWeights

ALL, BESIDE = "all", "every place / card"
DEPTHS = range(1, 5)


@dataclass(frozen=True)
class Examination:
    """Outcome.

    Attributes:
        findings: differences, in the order in which a text meets them.
        replay: drafts in both arithmetics.
        promised: by the head's card.
    """

    findings: tuple[Difference, ...]
    replay: Replay
    promised: Promises

    @property
    def is_sound(self) -> bool:
        """True if nothing differs."""
        return not self.findings


def examine(
    trained: TrainedHead,
    lm: LanguageModel,
    texts: Sequence[HeldText],
    target: TargetWeights,
    promises: Promises,
    coverage: tuple[float, float] | None = None,
) -> Examination:
    """Compare training with decoding from the prompt to the draft.

    Args:
        texts: held out, with states in training's arithmetic.
        target: embedding and output head, for the draft vocabulary of the head.
        promises: of the head's card.
        coverage: of the draft vocabulary, as ``head.vocabulary`` takes it.

    Raises:
        ValueError: for a head of another kind than EAGLE's.
    """
    head = heads.head_of(trained)
    columns = [
        text.layers.index(layer)
        for text in texts[:1]
        for layer in head.config.reads
        if layer in text.layers
    ]
    reads_them = len(columns) == len(head.config.reads)
    both = replay(trained, lm, texts, target)
    found = [
        states.template(lm, texts),
        states.states(lm.model, texts),
        wandered(both),
        heads.layers(head, texts, lm.model, target),
        heads.vocabulary(texts, target, coverage),
        heads.labels(head, texts, columns, target) if reads_them else None,
        drafts(both),
    ]
    return Examination(tuple(each for each in found if each is not None), both, promises)


def wandered(both: Replay) -> Difference | None:
    """Find a target that no longer writes its own greedy texts."""
    if both.wandered is None:
        return None
    text, place = both.wandered
    says = (
        "the target now writes another token than in the data; make data with the target of today"
    )
    return Difference("target", says, text, place)


def table(examined: Examination) -> list[dict[str, str]]:
    """Rows by task kind: the share of right drafts by depth, decoding beside training.

    Below stand, for the kinds whose figures the card promises, shares of every place of these
    texts, each draft after the true tokens, beside the promise; for all of them beside the mean of
    the promises, each kind weighing as much as in these texts.
    """
    both = examined.replay
    rows = [_row(kind, both.decoding[kind], both.training[kind]) for kind in sorted(both.decoding)]
    rows.append(_row(ALL, _sum(both.decoding), _sum(both.training)))
    return rows + _beside_promises(both.every, examined.promised)


def _beside_promises(every: Mapping[str, Drafted], promises: Promises) -> list[dict[str, str]]:
    """Rows of the drafts of every place beside what the card promises, of kinds that it tells."""
    known = [kind for kind in sorted(every) if kind in promises.kinds]
    rows = [_told(f"{kind}, {BESIDE}", _pairs(every, {kind: kind}, promises)) for kind in known]
    told = {kind: kind for kind in known} or dict.fromkeys(every, MEAN)
    pairs = _pairs(every, told, promises)
    if all(promise is None for _, promise in pairs):
        return rows
    return [*rows, _told(f"{ALL}, {BESIDE}", pairs)]


def _pairs(
    every: Mapping[str, Drafted], kinds: Mapping[str, str], promises: Promises
) -> list[tuple[float | None, float | None]]:
    """Shares found and promised at each depth, pooled over kinds; ``kinds`` says under which name
    of the card each is promised.
    """
    pooled, found = _sum({kind: every[kind] for kind in kinds}), []
    for depth in DEPTHS:
        told = [promises.share(name, depth) for name in kinds.values()]
        places = [sum(every[kind].reached[depth - 1 : depth]) for kind in kinds]
        promise = None
        if sum(places) and None not in told:
            weighed = zip(places, told, strict=True)
            promise = sum(count * (share or 0.0) for count, share in weighed) / sum(places)
        found.append((pooled.share(depth - 1), promise))
    return found


def _row(kind: str, decoding: Drafted, training: Drafted) -> dict[str, str]:
    return _told(kind, [(decoding.share(n - 1), training.share(n - 1)) for n in DEPTHS])


def _told(kind: str, pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, str]:
    row = {"kind": kind}
    for depth, pair in zip(DEPTHS, pairs, strict=True):
        shares = ("-" if each is None else f"{each:.2f}" for each in pair)
        row[f"depth {depth}"] = " / ".join(shares)
    return row


def _sum(kinds: Mapping[str, Drafted]) -> Drafted:
    total = Drafted()
    for each in kinds.values():
        for depth, (reached, right) in enumerate(zip(each.reached, each.right, strict=True)):
            if depth == len(total.reached):
                total.reached.append(0)
                total.right.append(0)
            total.reached[depth] += reached
            total.right[depth] += right
    return total
