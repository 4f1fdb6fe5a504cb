"""The rest of the family at equal data: FSPAD, block drafters, nested sizes, divergences, and when
to stop.

    python -m benchmarks.training.family train DATA --work FOLDER
    python -m benchmarks.training.family measure --work FOLDER
    python -m benchmarks.training.family show

DATA is what `draftwood train data` writes. `train` prints the hours that it takes before it begins;
a command that is stopped goes on when it is given again, and leaves out what is there.

Questions, each with its control:

* `fspad`: FSPAD beside EAGLE-1 with its own loss, and beside an EAGLE-1 of two layers, which has as
  many weights.
* `block`: blocks of mask tokens with and without a Markov term, beside EAGLE-1, EAGLE-3 and CTC's
  frames.
* `sizes`: one nested LM (S2D) beside separate LMs, each of which sees as many tokens as the nested
  one; and the adaptive choice beside the best single size.
* `divergences`: DistillSpec. From one LM that saw half of the tokens all go on with the other half:
  by four divergences, on the target's texts (off-policy) or on texts that this LM drew (on-policy).
* `stopping`: SpecDec++ beside `until` and the best fixed length, on one draft LM.

The first two are measured as `benchmarks.training.drafters` does. The others decode chains with
rejection, and count passes of the target and of the drafter. A setting (length, threshold) is
chosen on one half of the prompts and counts on the other. Intervals are over prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from benchmarks.common.json_lines import read
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.training.drafters import (
    TITLES,
    Arm,
    eagle,
    key,
    statistical,
    tokens_per_second,
    train_one,
    training_of,
)
from benchmarks.training.drafters import measure as measure_heads
from benchmarks.training.family_chains import (
    DIVERGENCES,
    FOLDER,
    chain_tables,
    measure_chains,
)
from benchmarks.training.frames import frames
from benchmarks.training.on_policy import DraftedDataset, write_answers
from draftwood.heads.folder import load
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_train.data.dataset import Dataset
from draftwood_train.recipes.acceptance import AcceptanceRecipe
from draftwood_train.recipes.dflash import DflashRecipe
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.lm import LmRecipe
from draftwood_train.recipes.s2d import S2dRecipe
from draftwood_train.run import Training

RECORDS = FOLDER / "records.jsonl"
START = "lm, start"
COMMAND = "python -m benchmarks.training.family train DATA --work FOLDER"
HEADS = ("fspad", "block")
BESIDE = {
    "fspad": ("eagle-1", "eagle-1, 2 layers"),
    "block": ("eagle-1", "eagle-3", "ctc, layer"),
}
"""Arms beside which the others of a question stand."""


@dataclass(frozen=True)
class FamilyArm(Arm):
    """A drafter to train.

    Attributes:
        start: arm whose head it goes on from.
        drafted: whether it learns from texts that this head drew.
    """

    start: str = ""
    drafted: bool = False


@dataclass(frozen=True)
class OnPolicyTraining(Training):
    """A training on answers that a draft LM wrote."""

    answers: Path = Path()

    @cached_property
    def dataset(self) -> Dataset:
        return DraftedDataset(Dataset.open(self.data, self.loaded.model), self.answers)


def arms(tokens: int) -> list[FamilyArm]:
    """Every arm at this amount of data, in the order in which they need each other."""
    half, one = tokens // 2, EagleRecipe(unroll=1, variant="eagle-1")
    layered = frames(form="layer", features="three", pairwise=64, paced=True)
    found = [
        FamilyArm("eagle-1", "fspad", one, tokens),
        FamilyArm("eagle-1, 2 layers", "fspad", replace(one, layers=2), tokens),
        FamilyArm("fspad", "fspad", replace(one, variant="fspad"), tokens),
        FamilyArm("eagle-3", "block", eagle(), tokens),
        FamilyArm("ctc, layer", "block", layered, tokens),
        FamilyArm("dflash", "block", DflashRecipe(), tokens),
        FamilyArm("dflash, no pairs", "block", DflashRecipe(pairwise=0), tokens),
        FamilyArm("s2d", "sizes", S2dRecipe(sizes=3), tokens),
        *(FamilyArm(f"lm {n}", "sizes", LmRecipe(layers=n), tokens) for n in (1, 2, 3)),
        FamilyArm(START, "divergences", LmRecipe(), half),
    ]
    for name in DIVERGENCES:
        recipe = LmRecipe(loss_name=name)  # type: ignore[arg-type]
        found += [
            FamilyArm(f"{name}, off", "divergences", recipe, half, start=START),
            FamilyArm(f"{name}, on", "divergences", recipe, half, start=START, drafted=True),
        ]
    told = FamilyArm("told lm", "stopping", AcceptanceRecipe(), half, start="lm 1")
    return [replace(arm, cells=((8, 0.0), (8, 1.0))) for arm in [*found, told]]


def training(arm: FamilyArm, data: Path, work: Path, tokens: int) -> Training:
    """The training of an arm, into its folder."""
    known = {each.name: each for each in arms(tokens)}
    command = f"{COMMAND} --tokens {tokens}"
    made: Training = training_of(arm, data, arm.folder(work), command)
    if arm.start:
        made = replace(made, start=known[arm.start].folder(work))
    if not arm.drafted:
        return made
    own = {name: getattr(made, name) for name in Training.__dataclass_fields__}
    return OnPolicyTraining(**own, answers=work / "answers.jsonl")


def train(data: Path, work: Path, tokens: int, only: str | None) -> None:
    """Train what is missing; Ctrl-C ends it after a checkpoint."""
    missing = [each for each in chosen(tokens, only) if not each.is_trained(work)]
    print(f"{hours(missing, data, work, tokens):.1f} hours for {len(missing)} arms", flush=True)
    for arm in missing:
        if arm.drafted:
            draft_answers(data, work, tokens)
        if not train_one(arm.name, training(arm, data, work, tokens)):
            return


def hours(missing: Sequence[FamilyArm], data: Path, work: Path, tokens: int) -> float:
    """Estimated hours, by three steps of the first arm and every arm's weights beside its own."""
    if not missing:
        return 0.0
    first = next((each for each in missing if not each.start), None)
    first = first or next(each for each in arms(tokens) if not each.start)
    rate = tokens_per_second(training_of(first, data, work / "probe"))
    return sum(arm.tokens * work_of(arm) / work_of(first) for arm in missing) / rate / 3600


def work_of(arm: Arm) -> float:
    """Products of a token in training, in layers: an output head is one more, for each exit."""
    recipe = arm.recipe
    layers = getattr(recipe, "layers", 1)
    sizes = getattr(recipe, "sizes", 0)
    steps = getattr(recipe, "unroll", 1)
    return float(sizes + sizes * (sizes + 1) / 2 if sizes else steps * (layers + 1))


def draft_answers(data: Path, work: Path, tokens: int) -> None:
    """Let the half-trained LM answer the prompts, as many tokens as an arm learns from."""
    start = next(each for each in arms(tokens) if each.name == START)
    made = training(start, data, work, tokens)
    texts, head = made.dataset.texts("train"), load(start.folder(work))
    count = write_answers(work / "answers.jsonl", texts, head, made.loaded.model, start.tokens)
    print(f"{count:,} tokens drafted", flush=True)


def chosen(tokens: int, only: str | None) -> list[FamilyArm]:
    """The arms of these names or questions, with semicolons between; all for None.

    Raises:
        SystemExit: for a name that there is not.
    """
    every, wanted = arms(tokens), set() if only is None else set(only.split(";"))
    names = {each.name for each in every} | {each.question for each in every}
    if strange := wanted - names:
        raise SystemExit(f"no arm or question {sorted(strange)[0]!r}; there are {sorted(names)}")
    return [each for each in every if not wanted or wanted & {each.name, each.question}]


def measure(work: Path, tokens: int, only: str | None) -> None:
    """Decode with the heads that are there; what is measured is not measured again."""
    there = [arm for arm in chosen(tokens, only) if arm.is_trained(work)]
    if heads := [arm for arm in there if arm.question in HEADS]:
        measure_heads(heads, work, RECORDS)
    starts = {arm.start for arm in there if arm.start}  # what they go on from stands beside them
    beside = [arm for arm in arms(tokens) if arm.name in starts and arm.is_trained(work)]
    measure_chains({arm.name: arm.folder(work) for arm in [*beside, *there]}, tokens)


def tables() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Rows by question and amount of data."""
    cells: dict[tuple[str, int], dict[str, list[dict]]] = {}
    for record in unique(read(RECORDS)):
        place = cells.setdefault((record["question"], record["data"]), {})
        place.setdefault(record["name"], []).append(record)
    for (question, amount), own in cells.items():
        base = {**cells.get(("fspad", amount), {}), **own}
        rows = [row(name, records, base, question) for name, records in own.items()]
        yield f"{TITLE[question]}, {amount:,} tokens", rows
    yield from chain_tables()


def unique(records: Sequence[dict]) -> list[dict]:
    """Records without what stands there twice."""
    return list({key(each): each for each in records}.values())


def row(name: str, own: list[dict], base: dict[str, list[dict]], question: str) -> dict[str, str]:
    """One drafter: block efficiencies, and greedily beside the others of its question."""
    told = {"drafter": name, "weights": f"{own[0]['weights'] / 1e6:.1f}M"}
    for temperature in (0.0, 1.0):
        told[f"8 nodes, T = {temperature:g}"] = str(block_efficiency(at(own, temperature)))
    for other in BESIDE[question]:
        ratio = block_efficiency_ratio(at(own, 0.0), at(base.get(other, []), 0.0))
        told[f"beside {other}"] = "" if name == other or ratio is None else str(ratio)
    return told


def at(records: list[dict], temperature: float) -> list:
    """Records of a temperature, as the statistics read them."""
    return statistical([each for each in records if each["temperature"] == temperature])


TITLE = {**TITLES, "fspad": "FSPAD beside EAGLE-1", "block": "Blocks of mask tokens"}


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "measure"):
        command = commands.add_parser(name)
        if name == "train":
            command.add_argument("data", type=Path)
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--tokens", type=int, default=300_000)
        command.add_argument("--only", metavar="A;B;C", help="arms or questions")
        command.add_argument("--threads", type=int, default=1)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "show":
        show()
        return
    torch.set_num_threads(given.threads)
    if given.command == "train":
        train(given.data, given.work, given.tokens, given.only)
    else:
        measure(given.work, given.tokens, given.only)


def show() -> None:
    """The tables, in Markdown."""
    print_tables((f"### {title}", rows) for title, rows in tables())


if __name__ == "__main__":
    main()
