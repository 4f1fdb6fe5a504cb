"""Examine a head: the first difference between training and decoding, and its acceptance."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwood.heads.trained import TrainedHead
from draftwood.text.language_model import LanguageModel
from draftwood_train.by_kind import MEAN
from draftwood_train.doctor import head as heads
from draftwood_train.doctor import states
from draftwood_train.doctor.differences import Difference, Drafted
from draftwood_train.doctor.replay import Replay, drafts, replay
from draftwood_train.doctor.texts import HeldText
from draftwood_train.recipe import TargetWeights

ALL, EVERY = "all", "every place"


@dataclass(frozen=True)
class Examination:
    """Outcome.

    Attributes:
        findings: differences, in the order in which a text meets them.
        replay: drafts in both arithmetics.
        promised: figures of the head's card.
    """

    findings: tuple[Difference, ...]
    replay: Replay
    promised: Mapping[str, float]

    @property
    def is_sound(self) -> bool:
        """True if nothing differs."""
        return not self.findings


def promised(folder: Path) -> dict[str, float]:
    """Figures of a card: those it lists, such as ``- guess_1: 0.55``, else its mean over kinds."""
    card = folder / "card.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    names = next((row for row in rows if row[:1] == ["kind"]), [])
    mean = next((row for row in rows if row[:1] == [MEAN]), [])
    table = {
        name.replace("depth ", "guess_"): value
        for name, value in zip(names, mean, strict=False)
        if name.startswith("depth") and value != "-"
    }
    listed = re.findall(r"^- (\w+): ([\d.]+(?:e[+-]\d+)?)$", text, re.M)
    return {name: float(value) for name, value in {**table, **dict(listed)}.items()}


def examine(
    trained: TrainedHead,
    lm: LanguageModel,
    texts: Sequence[HeldText],
    target: TargetWeights,
    promises: Mapping[str, float],
) -> Examination:
    """Compare training with decoding from the prompt to the draft.

    Args:
        texts: held out, with states in training's arithmetic.
        target: embedding and output head, for the draft vocabulary of the head.
        promises: figures of the card.

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
        heads.vocabulary(texts, target, promises),
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

    What the card promises stands below the same figures of these texts: of every place, each draft
    after the true tokens.
    """
    both = examined.replay
    rows = [_row(kind, both.decoding[kind], both.training[kind]) for kind in sorted(both.decoding)]
    rows.append(_row(ALL, _sum(both.decoding), _sum(both.training)))
    promises = {f"depth {n}": examined.promised.get(f"guess_{n}") for n in range(1, 5)}
    if any(each is not None for each in promises.values()):
        found = {f"depth {n}": both.every.share(n - 1) for n in range(1, 5)}
        for kind, shares in ((EVERY, found), ("promised", promises)):
            told = {name: "" if each is None else f"{each:.2f}" for name, each in shares.items()}
            rows.append({"kind": kind, **told})
    return rows


def _row(kind: str, decoding: Drafted, training: Drafted) -> dict[str, str]:
    row = {"kind": kind}
    for depth in range(4):
        pair = decoding.share(depth), training.share(depth)
        shares = ["-" if each is None else f"{each:.2f}" for each in pair]
        row[f"depth {depth + 1}"] = " / ".join(shares)
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
