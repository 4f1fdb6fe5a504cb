"""Bits about tokens to come that probes find in hidden states beyond what else is known.

The measure is of Zhang 2025 (arXiv:2507.19247), who explains drafting heads by the information
that a state H_t holds about later tokens besides the newest one, I(H_t; W | W_t), and measures
nothing. A difference of held-out cross-entropies of two probes estimates such a quantity. It is
neither a bound nor exact: both probes miss something.

A ladder of log-bilinear probes for the token k = 2, 3, 4 ahead. Each rung reads one block more
than the one below, whose weights it keeps.

    newest token      its embedding, and the model's last state behind it alone
    next token        and the state after the final norm. That state and the distribution of the
                      next token determine each other where the output head has full rank: so all
                      that inner states hold beyond it, the distribution does not show
    states            and the inputs of inner layers
    untrained         the newest token, and the same states of a network that was never trained:
                      the control. It mixes earlier tokens too, and only what exceeds it was learnt:
                      with smollm2-135m's answers it gives 0.04 bits at each place ahead
    root              the newest token, and the token that the model draws from its distribution,
                      which a drafter knows in decoding
    root, next token  and the state after the final norm
    drafter           and the inputs of inner layers
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from draftwood_train.inspection.probe import Classes, Probe, ProbeRows, losses, trained
from draftwood_train.inspection.readings import Readings, TokenTable

AHEAD = (2, 3, 4)
NEWEST, NEXT, STATES, UNTRAINED = "newest token", "next token", "states", "untrained"
ROOT, ROOT_NEXT, DRAFTER = "root", "root, next token", "drafter"
LADDER: Mapping[str, tuple[str | None, str]] = {
    NEWEST: (None, "newest"),
    NEXT: (NEWEST, "final"),
    STATES: (NEXT, "inner"),
    UNTRAINED: (NEWEST, "untrained"),
    ROOT: (NEWEST, "root"),
    ROOT_NEXT: (ROOT, "final"),
    DRAFTER: (ROOT_NEXT, "inner"),
}
"""Rungs: the one below, and the block that is added."""
FURTHEST_OFF = 5.0
"""Standard deviations beyond which entries of states are cut."""
DRAWS = 1000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, by a bootstrap over documents."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Float[Tensor, " places"], document: Int[Tensor, " places"]) -> "Interval":
        """Mean over places, whose documents are drawn with replacement."""
        count = int(document.max()) + 1
        sums = np.bincount(document.numpy(), values.double().numpy(), count)
        places = np.bincount(document.numpy(), minlength=count)
        drawn = np.random.default_rng(0).integers(0, count, (DRAWS, count))
        means = sums[drawn].sum(1) / places[drawn].sum(1)
        low, high = np.quantile(means, (0.025, 0.975))
        return cls(float(values.mean()), float(low), float(high))


@dataclass(frozen=True)
class Surplus:
    """Bits per token about the token ``ahead`` places on.

    Attributes:
        newest: cross-entropy that the newest token leaves.
        by_next: what the next token's distribution takes off that.
        by_states: what it takes off together with the inner states.
        beyond_next: what the inner states take off beyond the next token's distribution.
        by_untrained: what states of an untrained network take off ``newest``.
    """

    ahead: int
    newest: float
    by_next: Interval
    by_states: Interval
    beyond_next: Interval
    by_untrained: Interval


@dataclass(frozen=True, eq=False)
class SplitReadings:
    """Rows of all blocks for the documents to learn from, to stop by, and to tell by.

    Attributes:
        readings: of each part.
        blocks: of each part, by name.
    """

    readings: Sequence[Readings]
    blocks: Sequence[Mapping[str, Float[Tensor, "places features"]]]

    @classmethod
    def of(cls, readings: Sequence[Readings], table: TokenTable) -> "SplitReadings":
        """Scale blocks by their means and deviations in what is learnt from."""
        raw = [
            {"newest": table.of(each.newest), "root": table.of(each.ahead[:, 0]), **each.states}
            for each in readings
        ]
        scales = {name: _scale(rows) for name, rows in raw[0].items()}
        return cls(
            readings,
            [{name: scales[name](rows) for name, rows in part.items()} for part in raw],
        )

    def rows(self, rung: str, classes: Classes, ahead: int) -> list[ProbeRows]:
        """Rows of a rung's probe, part by part."""
        names: list[str] = []
        below: str | None = rung
        while below is not None:
            below, block = LADDER[below]
            names.insert(0, block)
        return [
            ProbeRows(
                tuple(blocks[name] for name in names), classes.of_token[each.ahead[:, ahead - 1]]
            )
            for each, blocks in zip(self.readings, self.blocks, strict=True)
        ]


def _scale(learnt: Tensor) -> Callable[[Tensor], Tensor]:
    """A scaling after which a row is about as long as 1, whatever its features are."""
    mean, size = learnt.mean(0), learnt.std(0).clamp_min(1e-6)
    shorter = learnt.shape[1] ** -0.5
    return lambda rows: ((rows - mean) / size).clamp(-FURTHEST_OFF, FURTHEST_OFF) * shorter


def climbed(
    parts: SplitReadings, classes: Classes, ahead: int, seed: int, report: Callable[[], None]
) -> dict[str, Probe]:
    """Train the ladder's probes for one place ahead."""
    found: dict[str, Probe] = {}
    for rung, (below, block) in LADDER.items():
        width = parts.blocks[0][block].shape[1]
        new = Probe(classes, [width]) if below is None else found[below].widened(width)
        learnt, stopping, _ = parts.rows(rung, classes, ahead)
        found[rung] = trained(new, learnt, stopping, seed)
        report()
    return found


def surplus(
    probes: Mapping[str, Probe], parts: SplitReadings, classes: Classes, ahead: int
) -> Surplus:
    """Tell by held-out documents what the probes are worth."""
    bits = {
        rung: losses(probes[rung], parts.rows(rung, classes, ahead)[-1]) / np.log(2)
        for rung in (NEWEST, NEXT, STATES, UNTRAINED)
    }
    document = parts.readings[-1].document

    def gain(before: str, after: str) -> Interval:
        return Interval.of(bits[before] - bits[after], document)

    return Surplus(
        ahead,
        float(bits[NEWEST].mean()),
        by_next=gain(NEWEST, NEXT),
        by_states=gain(NEWEST, STATES),
        beyond_next=gain(NEXT, STATES),
        by_untrained=gain(NEWEST, UNTRAINED),
    )
