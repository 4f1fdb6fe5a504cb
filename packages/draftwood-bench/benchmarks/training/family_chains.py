"""Chains of draft LMs: passes of target and drafter, by length, size, divergence and stopping rule.

What `benchmarks.training.family` measures of draft LMs. All of them run in PyTorch, where their
work can be counted: in layers, the output head being one more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import draftwood
from benchmarks.common.json_lines import RESULTS
from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Side,
    figure,
    held_out,
    kept_tokens,
    over,
    side,
    spec_bench,
    tested_tokens,
)
from draftwood.drafters import Lm
from draftwood.engine.method import Method
from draftwood.heads.folder import load
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.shapes import Widths
from draftwood.shapes.shape import Shape
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Rejection
from draftwood_methods.drafters import S2d, SpecDecPlusPlus
from draftwood_methods.shapes import Gated, Until
from draftwood_train.checkpoints import Checkpoint

FOLDER = RESULTS / "family"
DIVERGENCES = ("kl", "reverse-kl", "jsd", "tv")
TEMPERATURES = (0.0, 1.0)
LENGTH, LONGEST = 4, 8
NEW_TOKENS, PROMPTS = 64, 2
PRICES = (0.05, 0.1, 0.2)
"""Seconds of a drafter's layer, as a share of those of a pass of the target."""


@dataclass(eq=False)
class Work:
    """Layers that drafters ran since they were last asked for; an output head is one more."""

    layers: int = 0
    watched: list[Any] = field(default_factory=list)  # heads that several drafters may share

    def told(self) -> Mapping[str, Any]:
        """Layers since the last call, as a field of a record."""
        found, self.layers = self.layers, 0
        return {"layers": found}

    def watch(self, drafter: Any) -> Any:
        """Count what this drafter runs: a call of its output head, and the layers before it."""
        placed, head = drafter.placed, drafter.placed.network
        logits, layers = placed.logits, head.config.layers
        is_nested = isinstance(drafter, S2d)

        def counted(states: Any) -> Any:
            self.layers += 1 if is_nested else 1 + layers
            return logits(states)

        object.__setattr__(placed, "logits", counted)
        if is_nested and head not in self.watched:
            self._watch_parts(head)
        return drafter

    def _watch_parts(self, head: Any) -> None:
        part = head.part
        self.watched.append(head)

        def counted(number: int, *given: Any) -> Any:
            self.layers += len(head.places_of(number))
            return part(number, *given)

        head.part = counted


def chain(trained: TrainedHead, model: Model, shape: Shape) -> Lm:
    """A draft LM on this shape, in PyTorch."""
    drafter = Lm(trained, model, shape)
    object.__setattr__(drafter, "native", None)
    return drafter


def fixed(length: int) -> Widths:
    return Widths((1,) * length)


def stopping(lm: TrainedHead, told: TrainedHead, model: Model) -> dict[str, Any]:
    """Drafters by rule and setting, on the same LM."""
    found: dict[str, Any] = {f"fixed:{n}": chain(lm, model, fixed(n)) for n in (1, 2, 3, 4, 6, 8)}
    for bound in (0.3, 0.5, 0.7, 0.85):
        found[f"until entropy:{bound}"] = chain(lm, model, Until(LONGEST, bound))
    for bound in (0.1, 0.3, 0.5, 0.7):
        shape = Until(LONGEST, bound, "probability")
        found[f"until probability:{bound}"] = chain(lm, model, shape)
    for bound in (0.3, 0.5, 0.7, 0.9):
        found[f"specdec++:{bound}"] = SpecDecPlusPlus(told, model, Gated(LONGEST), bound)
    return found


def sizes(nested: TrainedHead, separate: Sequence[TrainedHead], model: Model) -> dict[str, Any]:
    """A nested LM by single sizes and by adaptive choice, and separate LMs of each size."""
    found: dict[str, Any] = {
        f"separate:{n}": chain(each, model, fixed(LENGTH)) for n, each in enumerate(separate, 1)
    }
    for n in range(1, len(separate) + 1):
        found[f"nested:{n}"] = S2d(nested, model, Gated(LENGTH), least=0.0, sizes=(n,))
    for sure in (0.3, 0.5, 0.7):
        found[f"sure:{sure}"] = S2d(nested, model, Gated(LENGTH), sure, 0.0)
        found[f"sure, may stop:{sure}"] = S2d(nested, model, Gated(LONGEST), sure, sure / 2)
    return found


def measure_chains(folders: Mapping[str, Path], tokens: int) -> None:
    """Decode with the draft LMs that are there; what is measured is not measured again.

    Args:
        folders: of trained heads by arm.
        tokens: that arms were trained on.
    """
    lm = draftwood.load("smollm2-135m", method="plain")
    trained = {name: load(folder) for name, folder in folders.items()}
    separate = [trained[f"lm {n}"] for n in (1, 2, 3) if f"lm {n}" in trained]
    if {"told lm", "lm 1"} <= set(trained):
        measured(f"stopping-{tokens}", lm, stopping(separate[0], trained["told lm"], lm.model))
    if "s2d" in trained and len(separate) == 3:
        measured(f"sizes-{tokens}", lm, sizes(trained["s2d"], separate, lm.model))
    ways = [name for name in folders if name.endswith((", on", ", off"))]
    if ways:
        ends = {name: at_its_end(trained[name], folders[name]) for name in ways}
        own = {name: chain(head, lm.model, fixed(LENGTH)) for name, head in ends.items()}
        measured(f"divergences-{tokens}", lm, own)


def at_its_end(trained: TrainedHead, folder: Path) -> TrainedHead:
    """A drafter with the weights that its training ended with.

    A folder keeps those that were judged best, which are the first ones where a divergence makes
    guesses of single tokens worse.
    """
    state = Checkpoint.read(folder.with_name(f"{folder.name}.training"))
    last = {name: each.detach().float().numpy() for name, each in state.head.items()}
    return replace(trained, weights={**trained.weights, **last})


def measured(name: str, lm: LanguageModel, drafters: Mapping[str, Any]) -> None:
    """Append the counts of these drafters with rejection, greedily and at temperature 1."""
    work = Work()
    ways = {
        each: lm.with_method(Method(work.watch(drafter), Rejection()))
        for each, drafter in drafters.items()
    }
    decoder = Decoder(Records(name, folder=FOLDER), NEW_TOKENS, work.told, shares=False)
    for temperature in TEMPERATURES:
        decoder.run(ways, spec_bench(lm, PROMPTS), temperature)


def chain_tables() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Rows of all that is recorded."""
    makers = {"stopping": stopping_rows, "sizes": size_rows, "divergences": divergence_rows}
    for name, rows_of in makers.items():
        for path in sorted(FOLDER.glob(f"{name}-*.jsonl")):
            rows, amount = list(Records(path.stem, folder=FOLDER).rows.values()), path.stem
            yield f"{TITLE[name]}, {int(amount.split('-')[1]):,} tokens", rows_of(rows)


def priced(rows: Sequence[Row], arm: str, price: float, temperature: float) -> Side:
    """Tokens of an arm for what a pass of the target costs, by prompt."""
    return side(rows, arm, "tokens", lambda row: row["passes"] + price * row["layers"], temperature)


def families(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Arms by what stands before their setting."""
    found: dict[str, list[str]] = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        found.setdefault(arm.split(":")[0], []).append(arm)
    return found


def compared(rows: Sequence[Row], base: str) -> list[dict[str, str]]:
    """Each family beside a base by price, both with the setting that other prompts chose."""
    found = []
    for name, own in families(rows).items():
        told = {"drafts": name}
        for temperature in TEMPERATURES:
            for price in PRICES:
                one, other = (
                    held_out([priced(rows, arm, price, temperature) for arm in arms])
                    for arms in (own, families(rows)[base])
                )
                cell = str(figure(one)) if name == base else f"x {over(one, other)}"
                told[f"layer {price:g}, T = {temperature:g}"] = cell
        found.append(told)
    return found


def stopping_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Rules beside the best fixed length."""
    return compared(rows, "fixed")


def size_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Ways to choose a size beside the best of separate LMs; and each size by itself."""
    found = compared(rows, "separate")
    numbers = [arm.split(":")[1] for arm in families(rows).get("nested", [])]
    for number in numbers:
        told = {"drafts": f"nested {number} beside separate {number}"}
        for temperature in TEMPERATURES:
            one, other = (
                side(rows, f"{kind}:{number}", "tokens", "passes", temperature)
                for kind in ("nested", "separate")
            )
            told[f"tokens per pass, T = {temperature:g}"] = f"x {over(one, other)}"
        found.append(told)
    return found


def divergence_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Acceptance and tokens per pass of each way to train, beside forward KL off-policy."""
    found = []
    for arm in families(rows):
        told = {"trained by": arm}
        for temperature in TEMPERATURES:
            kept = side(rows, arm, kept_tokens, tested_tokens(LENGTH), temperature)
            one, other = (
                side(rows, each, "tokens", "passes", temperature) for each in (arm, "kl, off")
            )
            told[f"acceptance, T = {temperature:g}"] = str(figure(kept))
            told[f"tokens per pass, T = {temperature:g}"] = str(figure(one))
            told[f"beside kl, off, T = {temperature:g}"] = (
                "" if arm == "kl, off" else str(over(one, other))
            )
        found.append(told)
    return found


TITLE = {
    "stopping": "When to stop: tokens for the price of a pass",
    "sizes": "One nested LM and separate ones",
    "divergences": "DistillSpec: divergences on and off policy",
}
