"""Four more of the family: SpecDec's drafter, LongSpec's head, PPD's threads, SPEED's pipeline.

    python -m benchmarks.family train DATA --work FOLDER --tokens 300000
    python -m benchmarks.family measure --work FOLDER --tokens 300000
    python -m benchmarks.family measure --work FOLDER --only ppd --quiet --threads 2
    python -m benchmarks.family show

DATA is what `draftwood train data DATA --tokens 1m --self-written 0.5` writes. Heads of one amount
see as many tokens of it in the same order, with the same rates; those that
`benchmarks.training.frames` trains too are shared with it, in the same folder. What was trained or
measured is not done again. Counts do not depend on what else the machine does; seconds do, so
`--quiet` says that nothing else computes.

specdec (Xia et al. 2022, arXiv:2203.16487): chains of four from an independent drafter that answers
one query for each place, beside one that drafts token by token, beside one query for all places,
and beside Medusa, which reads the target's state. Its relaxed rule is lossy: the table says how
much of the greedy text it keeps.

longspec (Yang et al. 2025, arXiv:2502.17421): behind 4,000 and 7,500 tokens of books, beside EAGLE
with and without a window at the same data, and beside itself without offsets and without the cache.

ppd (Yang et al. 2023, arXiv:2307.05908): seconds and CPU seconds of a token where guesses begin
beside the pass under way, beside the paper's 1 - p (1 - d / L) of plain decoding's.

speed (Hooper et al. 2023, arXiv:2310.12072): readings of the weights for each token of a small
looped decoder that is trained on a book, with and without losses at its early cycles.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.json_lines import RESULTS
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.pipelines import (
    LOOPED,
    looped_file,
    ppd_tables,
    run_ppd,
    run_speed,
    speed_tables,
    train_looped,
)
from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Table,
    Texts,
    figure,
    loaded,
    names_of,
    numbers_of,
    over,
    side,
    spec_bench,
    speed,
)
from benchmarks.self_speculation.reduced_targets import KINDS, long_texts
from benchmarks.training.drafters import Arm, chosen, eagle, train
from draftwood.drafters import Eagle, Lm, Medusa
from draftwood.engine.method import Method
from draftwood.heads.folder import load
from draftwood.heads.trained import TrainedHead
from draftwood.shapes import BestFirst, Widths
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters import Longspec, Specdec, Windowed
from draftwood_methods.verifiers import Relaxed
from draftwood_train.recipes.lm import LmRecipe
from draftwood_train.recipes.longspec import LongspecRecipe
from draftwood_train.recipes.medusa import MedusaRecipe
from draftwood_train.recipes.specdec import SpecdecRecipe

FOLDER = RESULTS / "family"
CHAIN = Widths((1,) * 4)
TREE = BestFirst(depth=3, width=3, size=4)
PLAIN = "plain"
RELAXED = "specdec-relaxed"
COMMAND = "python -m benchmarks.family train DATA --work FOLDER"

# Heads

HEADS = (
    Arm("lm", "specdec", LmRecipe()),
    Arm("specdec", "specdec", SpecdecRecipe()),
    Arm("specdec, one query", "specdec", SpecdecRecipe(shares_query=True)),
    Arm("medusa", "specdec", MedusaRecipe()),
    Arm("eagle-3", "longspec", eagle()),
    Arm("longspec", "longspec", LongspecRecipe()),
    Arm("longspec, no offsets", "longspec", LongspecRecipe(longest=0)),
    Arm("longspec, no cache", "longspec", LongspecRecipe(reads_cache=False)),
)


def heads(tokens: int) -> list[Arm]:
    """The heads at this amount of data."""
    return [replace(arm, tokens=tokens) for arm in HEADS]


def trained(work: Path, tokens: int, question: str) -> dict[str, TrainedHead]:
    """Heads of a question that are there."""
    arms = [arm for arm in heads(tokens) if arm.question == question]
    return {arm.name: load(arm.folder(work)) for arm in arms if arm.is_trained(work)}


# SpecDec

DRAFTERS: Mapping[str, Any] = {"lm": Lm, "specdec": Specdec, "medusa": Medusa}
RULES = {"beta 3, tau 1": Relaxed(3, 1.0), "beta 5, tau 3": Relaxed(5, 3.0)}


def run_specdec(records: Records, given: argparse.Namespace) -> None:
    lm = loaded("smollm2-135m")
    found = trained(given.work, given.tokens, "specdec")
    drafters = {
        name: DRAFTERS[name.split(",")[0]](head, lm.model, CHAIN) for name, head in found.items()
    }
    arms = {name: lm.with_method(Method(each, Rejection())) for name, each in drafters.items()}
    texts = spec_bench(lm, 2)
    for temperature in (0.0, 1.0):
        Decoder(records, 64).run({PLAIN: lm, **arms}, texts, temperature)
    if "specdec" in drafters:
        run_relaxed(Records(RELAXED, records.quiet, FOLDER), lm, drafters["specdec"], texts)


def run_relaxed(records: Records, lm: LanguageModel, drafter: Specdec, texts: Texts) -> None:
    """The lossy rule, whose texts are records of their own, as they are nobody else's."""
    for name, rule in RULES.items():
        relaxed, arm = lm.with_method(Method(drafter, rule)), f"specdec, {name}"
        for prompt, tokens in texts:
            if not records.has(arm, prompt):
                numbers = lossy_numbers(lm, relaxed, tokens)
                records.add(arm, prompt, **numbers, threads=torch.get_num_threads())


def lossy_numbers(plain: LanguageModel, lossy: LanguageModel, prompt: Sequence[int]) -> Row:
    """Numbers of a greedy text that a lossy rule wrote, and how much of it is the model's own."""
    own = plain.generate(list(prompt), max_new_tokens=64).token_ids
    made = lossy.generate(list(prompt), max_new_tokens=64, exact=False)
    same = [one == other for one, other in zip(made.token_ids, own, strict=False)]
    numbers = numbers_of(made.stats, made.token_ids)
    del numbers["text"]  # it is compared with nobody's
    until = next((place for place, each in enumerate(same) if not each), len(same))
    return {**numbers, "written": len(made.token_ids), "same": until}


def specdec_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for name in names_of(rows):
        line = {"drafter": name}
        for temperature in (0.0, 1.0):
            own, base = (side(rows, each, "tokens", "passes", temperature) for each in (name, "lm"))
            line[f"tokens per pass, T = {temperature:g}"] = str(figure(own)) if own else ""
            line[f"over lm, T = {temperature:g}"] = str(over(own, base)) if own else ""
        line["speed over plain"] = speed(rows, name, PLAIN)
        lossy = [row for row in rows if row["arm"] == name and "same" in row]
        line["greedy text kept"] = str(figure(side(lossy, name, "same", "written")))
        line["greedy text kept"] = line["greedy text kept"] if lossy else "all"
        lines.append(line)
    yield "SpecDec: chains of four from an independent drafter", lines


# LongSpec


def windowed(trained_head: TrainedHead, window: int | None) -> TrainedHead:
    """An EAGLE head that sees so many of its newest rows."""
    return replace(trained_head, config=replace(trained_head.config, window=window))


def run_longspec(records: Records, given: argparse.Namespace) -> None:
    lm = loaded("smollm2-135m")
    found = trained(given.work, given.tokens, "longspec")
    drafters: dict[str, Any] = {
        name: Longspec(head, lm.model, TREE)
        for name, head in found.items()
        if name.startswith("longspec")
    }
    if "eagle-3" in found:
        for name, window in (("eagle, no window", None), ("eagle, window 512", 512)):
            drafters[name] = Eagle(windowed(found["eagle-3"], window), lm.model, TREE)
    drafters["windowed target"] = Windowed(shape=Widths((1, 1, 1)))
    arms = {name: lm.with_method(Method(each, Match())) for name, each in drafters.items()}
    Decoder(records, 48).run({PLAIN: lm, **arms}, long_texts(lm, (4000, 7500), 3), 0.0)


def longspec_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for kind in KINDS:
        own = [row for row in rows if f", {kind}, " in row["prompt"]]
        for name in names_of(own):
            passes, whole, windowed_ones = (
                side(own, each, "tokens", "passes")
                for each in (name, "eagle, no window", "eagle, window 512")
            )
            lines.append(
                {
                    "texts": kind,
                    "drafter": name,
                    "tokens per pass": str(figure(passes)),
                    "over eagle, no window": str(over(passes, whole)),
                    "over eagle, window 512": str(over(passes, windowed_ones)),
                    "speed over plain": speed(own, name, PLAIN),
                }
            )
    yield "LongSpec: behind 4,000 and 7,500 tokens of books", lines


# All


@dataclass(frozen=True)
class Experiment:
    """One experiment: its run, and the tables of its records."""

    run: Callable[[Records, argparse.Namespace], None]
    tables: Callable[[Sequence[Row]], Iterator[Table]]


EXPERIMENTS = {
    "specdec": Experiment(run_specdec, specdec_tables),
    "longspec": Experiment(run_longspec, longspec_tables),
    "ppd": Experiment(run_ppd, ppd_tables),
    "speed": Experiment(run_speed, speed_tables),
}


def tables(name: str) -> Iterator[Table]:
    """Tables of an experiment; none where nothing was measured."""
    names = (name, RELAXED) if name == "specdec" else (name,)
    rows = [row for each in names for row in Records(each, folder=FOLDER).rows.values()]
    yield from EXPERIMENTS[name].tables(rows) if rows else ()


def train_all(given: argparse.Namespace) -> None:
    """Train what is not there: heads by name, and looped decoders."""
    only = given.only.split(";") if given.only else None
    arms = chosen(heads(given.tokens), given.only)
    train(given.data, given.work, arms, f"{COMMAND} --tokens {given.tokens}", measures=False)
    for name in LOOPED:
        if (only is None or name in only) and not looped_file(given.work, name).is_file():
            train_looped(given.work, name, given.steps)


def measure_all(given: argparse.Namespace) -> None:
    for name in given.only.split(";") if given.only else EXPERIMENTS:
        EXPERIMENTS[name].run(Records(name, given.quiet, FOLDER), given)


def show() -> None:
    """The tables, in Markdown."""
    for name in EXPERIMENTS:
        print_tables((f"### {title}", rows) for title, rows in tables(name))


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "measure"):
        command = commands.add_parser(name)
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--tokens", type=int, default=300_000)
        command.add_argument("--threads", type=int, default=2)
    training, measuring = commands.choices["train"], commands.choices["measure"]
    training.add_argument("data", type=Path)
    training.add_argument("--only", metavar="A;B;C", help="heads and looped decoders")
    training.add_argument("--steps", type=int, default=800, help="of looped decoders")
    measuring.add_argument("--only", metavar="A;B;C", help=f"of {', '.join(EXPERIMENTS)}")
    measuring.add_argument("--quiet", action="store_true", help="nothing else computes")
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "show":
        show()
        return
    torch.set_num_threads(given.threads)
    (train_all if given.command == "train" else measure_all)(given)


if __name__ == "__main__":
    main()
