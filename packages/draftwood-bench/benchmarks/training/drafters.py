"""Trained drafters compared at equal data: what helps, and what does not.

python -m benchmarks.training.drafters train DATA --work FOLDER     # trains and measures; resumable
python -m benchmarks.training.drafters show                         # the tables, in Markdown

DATA is what `draftwood train data DATA --tokens 1200k --self-written 0.5` writes with the public
sets. Drafters that are compared see as many tokens of it, but where the amount is what is asked.
They are measured by decoding prompts of Spec-Bench (its even half), two of each category, of which
no training saw any. Block efficiency is what a forward pass emits, pooled over prompts, with a
bootstrap 95 % interval over prompts.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.scripts import parser_of, print_tables
from draftwood.heads.trained import TrainedHead
from draftwood.methods import Method, build
from draftwood.methods.drafts import Drafts
from draftwood.models.model import Model
from draftwood.shapes import BestFirst
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_bench.run.blank import blank
from draftwood_bench.run.workbench import encoded
from draftwood_train.data.dataset import Dataset, Split, Texts
from draftwood_train.data.jobs import OWN
from draftwood_train.loop import TrainingSettings
from draftwood_train.optimisers import Rates
from draftwood_train.recipe import DrafterRecipe, PackedRows, TargetWeights
from draftwood_train.recipes.ctc import CtcRecipe
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.hydra import HydraRecipe
from draftwood_train.recipes.medusa import MedusaRecipe
from draftwood_train.run import Training
from draftwood_train.unrolled import shifted

RECORDS = RESULTS / "drafters" / "records.jsonl"
TOKENS = 300_000
FEWER_TOKENS = 60_000  # where EAGLE heads are compared with each other
NEW_TOKENS = 64
COMMAND = "python -m benchmarks.training.drafters train DATA --work FOLDER"
Cell = tuple[int, float]
"""Nodes of a tree, and the temperature."""


@dataclass(frozen=True)
class ReleasedCtc(EagleRecipe):
    """EAGLE-1 with a CTC term, as the code that was released with CTC-drafter trains it.

    Six predictions in a row, each of them given the text, are taken for frames of a label of three
    tokens, and token 0 for the blank. Its weight is 0.01 there.
    """

    ctc_weight: float = field(default=0.01)

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        total, figures = super().loss(head, rows, target, progress)
        if not self.ctc_weight:
            return total, figures
        step = next(self._unrolled(head, rows, target, 1))
        logits = functional.linear(step.states, target.head.to(step.states.dtype)).float()
        wanted = functional.linear(shifted(rows.final, 1), target.head.to(rows.final.dtype))
        label = wanted.argmax(-1)
        whole = step.counts.unfold(1, 6, 1).all(-1)
        row, place = whole.nonzero().T
        frames = logits.log_softmax(-1)[row[:, None], place[:, None] + torch.arange(6)]
        labels = label[row[:, None], place[:, None] + torch.arange(3)]
        if not len(row):
            return total, figures
        loss = functional.ctc_loss(
            frames.transpose(0, 1),
            labels,
            torch.full((len(row),), 6),
            torch.full((len(row),), 3),
            blank=0,
            zero_infinity=True,
        )
        return total + self.ctc_weight * loss, figures


@dataclass(frozen=True)
class Shuffled(EagleRecipe):
    """A control: in training the states belong to other places."""

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        states = rows.states.flatten(0, 1)
        states = states[torch.randperm(len(states))].view_as(rows.states)
        return super().loss(head, replace(rows, states=states), target, progress)


class PartOfData(Dataset):
    """The texts whose prompts the target wrote itself, or the others."""

    self_written = True

    def texts(self, split: Split) -> Texts:
        held_out = split == "held-out"
        found = [
            (shard, text)
            for shard in self.shards
            for text, source in enumerate(shard.sources)
            if bool(shard.held_out[text]) == held_out and (source == OWN) == self.self_written
        ]
        return Texts(found, self.layers, self.model)


class CollectedData(PartOfData):
    """The texts whose prompts were collected."""

    self_written = False


@dataclass(frozen=True)
class PartialTraining(Training):
    """A training on a part of the data."""

    part: type[Dataset] = Dataset

    @cached_property
    def dataset(self) -> Dataset:
        return self.part.open(self.data, self.loaded.model)


@dataclass(frozen=True)
class Arm:
    """One drafter to train.

    Attributes:
        question: of the issue that it helps to answer.
        rows: of a batch; all arms see batches of as many tokens.
        part: which texts it is trained on.
        searches: ways to read frames, for CTC heads.
        cells: in which it is measured.
    """

    name: str
    question: str
    recipe: DrafterRecipe
    tokens: int = TOKENS
    vocabulary: int = 8192
    part: type[Dataset] = Dataset
    searches: tuple[str, ...] = ("",)
    cells: tuple[Cell, ...] = ((1, 0.0), (8, 0.0), (8, 1.0))

    def folder(self, work: Path) -> Path:
        """Folder of its head."""
        return work / self.name.replace(" ", "-").replace(",", "")

    def is_trained(self, work: Path) -> bool:
        """True if its head is there."""
        return (self.folder(work) / "config.json").is_file()


def eagle(**options: Any) -> EagleRecipe:
    """An EAGLE head with two draft steps in training, the second from the beginning."""
    return EagleRecipe(**{"unroll": 2, "unroll_from": 0.0, **options})


def ctc(**options: Any) -> CtcRecipe:
    return CtcRecipe(anchors=32, **options)


ARMS = (
    Arm("ctc linear, ce", "ctc", ctc(form="linear", loss_name="ce")),
    Arm("ctc layer, ce", "ctc", ctc(loss_name="ce")),
    Arm("ctc layer, ctc", "ctc", ctc(loss_name="ctc"), searches=("raw", "paper", "prefix")),
    Arm("ctc layer, prefix", "ctc", ctc(loss_name="prefix")),
    Arm("ctc layer, prefix+lk", "ctc", ctc()),
    Arm("eagle-3", "ctc", eagle()),
    Arm("medusa", "ctc", MedusaRecipe()),
    Arm("hydra", "ctc", HydraRecipe()),
    Arm("eagle-1, ctc weight 0", "released", EagleRecipe(unroll=1, variant="eagle-1")),
    Arm("eagle-1, ctc weight 0.01", "released", ReleasedCtc(unroll=1, variant="eagle-1")),
    Arm("eagle, kl", "eagle", eagle(), tokens=FEWER_TOKENS),
    Arm("eagle, lk-hybrid", "eagle", eagle(loss_name="lk-hybrid"), tokens=FEWER_TOKENS),
    Arm("fspad", "eagle", EagleRecipe(unroll=1, variant="fspad"), tokens=FEWER_TOKENS),
    Arm("eagle, 12k tokens", "eagle", eagle(), vocabulary=12288, tokens=FEWER_TOKENS),
    Arm("eagle, 16k tokens", "eagle", eagle(), vocabulary=16384, tokens=FEWER_TOKENS),
    Arm("eagle, self-written", "data", eagle(), part=PartOfData, tokens=FEWER_TOKENS),
    Arm("eagle, collected", "data", eagle(), part=CollectedData, tokens=FEWER_TOKENS),
    Arm("eagle, shuffled", "control", Shuffled(unroll=2, unroll_from=0.0), tokens=FEWER_TOKENS),
    Arm("eagle, 20k data", "growth", eagle(), tokens=FEWER_TOKENS // 3),
    Arm("eagle, 180k data", "growth", eagle(), tokens=FEWER_TOKENS * 3),
    Arm("eagle, 2 layers", "growth", eagle(layers=2), tokens=FEWER_TOKENS),
    Arm("eagle, 4 layers", "growth", eagle(layers=4), tokens=FEWER_TOKENS),
)  # fmt: skip


def chosen(arms: Sequence[Arm], only: str | None) -> list[Arm]:
    """The arms of these names, with semicolons between; None keeps all."""
    return [arm for arm in arms if not only or arm.name in only.split(";")]


def train(
    data: Path,
    work: Path,
    arms: Sequence[Arm],
    command: str,
    measures: bool = True,
) -> None:
    """Train each arm, and decode with it unless told otherwise; Ctrl-C ends it after a checkpoint.

    Args:
        command: that trains them, for their cards.
    """
    measurement = Measurement() if measures else None
    for arm in arms:
        folder = arm.folder(work)
        made = training_of(arm, data, folder, command)
        if not arm.is_trained(work) and not train_one(arm.name, made):
            return
        if measurement:
            measurement.arm(arm, folder)


def train_one(name: str, training: Training) -> bool:
    """Train a head; False where it was stopped, and leaves nothing but its checkpoint."""
    outcome = training.run()
    if outcome.reason == "stopped":  # its head saw less than the others'
        shutil.rmtree(training.output)
        return False
    print(name, f"{outcome.seconds:.0f} s", dict(outcome.figures), flush=True)
    return True


def tokens_per_second(training: Training) -> float:
    """Tokens that a training takes in a second, by three steps of it; nothing of them stays."""
    settings = replace(training.settings, amount=3, unit="steps", judge_rows=1)
    probe = replace(training, settings=settings)
    _ = probe.loaded, probe.dataset.draft_vocabulary(1)
    begun = time.perf_counter()
    outcome = probe.run()
    seconds = time.perf_counter() - begun
    for leftover in (probe.output, probe.folder):
        shutil.rmtree(leftover, ignore_errors=True)
    return outcome.tokens / seconds


def training_of(arm: Arm, data: Path, folder: Path, command: str = "") -> PartialTraining:
    """The training of an arm, into a folder; its card names the command."""
    settings = TrainingSettings(
        arm.tokens,
        "tokens",
        rows=4,
        rates=Rates(4e-3, 1e-3, warm_up=10, decay=0.5),
        judge_every=40,
    )
    return PartialTraining(
        arm.recipe,
        data,
        folder,
        settings,
        arm.vocabulary,
        resume=True,
        command=command,
        part=arm.part,
    )


def method_of(arm: Arm, head: TrainedHead, search: str, nodes: int, model: Model) -> Method:
    """Build the decoding of a target with a head: trees of so many nodes, frames read this way."""
    own = head.config.kind == "ctc"
    depth = min(nodes, Drafts(head=head).levels or 6)
    shape = None if own else BestFirst(depth, min(nodes, 4), nodes)
    method = build(arm.recipe.name, model, shape=shape, head=head)
    if not own:
        return method
    changed = {"nodes": nodes, **({"search": search} if search else {})}
    return replace(method, drafter=replace(method.drafter, **changed))  # type: ignore[type-var]


class Measurement:
    """Decodes prompts, and appends what came of it; what is there is not measured again."""

    def __init__(
        self,
        per_category: int | None = 2,
        records: Path = RECORDS,
        target: str = "smollm2-135m",
        prompts: str = "spec-bench",
    ) -> None:
        import draftwood
        from draftwood_bench.plan.prompts import load_prompts

        self.lm = draftwood.load(target, method="plain")
        self.prompts = load_prompts(prompts, per_category=per_category).prompts
        self.records = records
        self.known = {key(each) for each in read(records)}

    def arm(self, arm: Arm, folder: Path) -> None:
        """Measure a trained arm: its first token, a small tree, both temperatures."""
        from draftwood.heads.folder import load

        head = load(folder)
        size = sum(each.size for each in head.weights.values())
        facts = {"question": arm.question, "data": arm.tokens, "weights": size}
        for search in arm.searches:
            for nodes, temperature in arm.cells:
                method = method_of(arm, head, search, nodes, self.lm.model)
                name = f"{arm.name}, {search}" if search else arm.name
                self.cell(name, f"{nodes} nodes", temperature, method, facts)

    def cell(
        self, name: str, at: str, temperature: float, method: Any, facts: Mapping[str, Any]
    ) -> None:
        """One method on all prompts."""
        for number, prompt in enumerate(self.prompts):
            record = {"name": name, "at": at, "temperature": temperature, "prompt": prompt.id}
            record |= facts
            if key(record) in self.known:
                continue
            lm = self.lm.with_method(method)
            since = time.perf_counter()
            made = lm.generate(
                encoded(self.lm, prompt),
                max_new_tokens=NEW_TOKENS,
                temperature=temperature,
                seed=number,
                ignore_eos=True,
            )
            stats = made.stats
            record |= {"category": prompt.category, "tokens": stats.tokens - 1}
            record |= {"runs": stats.target_runs, "drafted": stats.drafted}
            record |= {"seconds": round(time.perf_counter() - since, 4)}
            append(self.records, record)


def measure(arms: Sequence[Arm], work: Path, records: Path) -> None:
    """Decode with the heads of these arms; what is measured is not measured again."""
    measurement = Measurement(records=records)
    for arm in arms:
        measurement.arm(arm, arm.folder(work))
        print(arm.name, flush=True)


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("name", "at", "temperature", "prompt", "data"))


def tables() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Rows by question; each drafter stands beside the first of its question."""
    for question, records in grouped(read(RECORDS), "question").items():
        drafters = {
            name: grouped(own, "at", "temperature")
            for name, own in grouped(records, "name").items()
        }
        base = next(iter(drafters.values()))
        rows = []
        for name, cells in drafters.items():
            first = next(iter(cells.values()))[0]
            row = {"drafter": name, "tokens": f"{first['data'] // 1000}k"}
            row["weights"] = f"{first['weights'] / 1e6:.1f}M"
            for (at, temperature), found in cells.items():
                row[f"{at}, T = {temperature:g}"] = str(block_efficiency(statistical(found)))
            wanted = ("8 nodes", 0.0)
            ratio = block_efficiency_ratio(statistical(cells[wanted]), statistical(base[wanted]))
            row["beside the first, 8 nodes, T = 0"] = "" if cells is base else str(ratio)
            rows.append(row)
        yield question, rows


def pairs() -> list[dict[str, str]]:
    """Drafters beside each other, by block efficiency on the same prompts."""
    cells, rows = grouped(read(RECORDS), "name", "at", "temperature"), []
    for name, other in PAIRS:
        row = {"drafter": name, "beside": other}
        for at, temperature in (("1 nodes", 0.0), ("8 nodes", 0.0), ("8 nodes", 1.0)):
            one, two = (statistical(cells[each, at, temperature]) for each in (name, other))
            row[f"{at}, T = {temperature:g}"] = str(block_efficiency_ratio(one, two))
        rows.append(row)
    return rows


def statistical(records: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Records as the benchmarks' statistics read them."""
    return [
        blank(
            each["name"],
            each["at"],
            prompt=each["prompt"],
            temperature=each["temperature"],
            stats={"tokens": each["tokens"] + 1, "target_runs": each["runs"]},
        )
        for each in records
    ]


def show() -> None:
    """The tables, in Markdown."""
    print_tables((f"### {TITLES[question]}", rows) for question, rows in tables())


PAIRS = (
    ("ctc layer, ctc, paper", "ctc layer, ctc, raw"),
    ("ctc layer, ctc, prefix", "ctc layer, ctc, raw"),
    ("ctc layer, prefix", "ctc layer, ctc, prefix"),
    ("ctc layer, prefix+lk", "ctc layer, prefix"),
    ("ctc layer, prefix+lk", "ctc layer, ce"),
    ("hydra", "medusa"),
    ("eagle-1, ctc weight 0", "hydra"),
    ("eagle, shuffled", "eagle, kl"),
)
TITLES = {
    "ctc": "CTC-drafter, Medusa and Hydra",
    "released": "The code released with CTC-drafter",
    "eagle": "Losses and draft vocabularies",
    "data": "Whose prompts",
    "control": "Control: states of other places",
    "growth": "Amount of data, and layers",
}


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("data", type=Path)
    training.add_argument("--work", type=Path, required=True)
    training.add_argument("--only", metavar="A;B;C", help="arms, in their order")
    training.add_argument("--unmeasured", action="store_true", help="train alone")
    commands.add_parser("show")
    training.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.command == "show":
        show()
        return
    torch.set_num_threads(given.threads)
    train(given.data, given.work, chosen(ARMS, given.only), COMMAND, not given.unmeasured)


if __name__ == "__main__":
    main()
