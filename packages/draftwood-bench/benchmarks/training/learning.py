"""Ways to learn more per hour, compared at equal minutes of work.

    python -m benchmarks.training.learning train DATA --work FOLDER   # trains and judges; resumable
    python -m benchmarks.training.learning show                       # the table, in Markdown

Every arm trains an EAGLE head on DATA for as many minutes of one processor's work, so that pauses
and whatever runs beside it count for nothing; one that is stopped goes on with the same command. It
runs at the lowest priority. All arms but "last weights" keep the weights that were judged best on
a part of the held-out texts.

Heads are judged on the held-out texts of DATA: at every place of an answer, how much of the text a
tree of one or of eight nodes holds, the same best tree for all places; and at temperature 1 the
overlap with the target. Intervals come from drawing texts again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.training.drafters import statistical
from draftwood.heads.folder import load
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.tensors import as_tensor
from draftwood_train.checkpoints import Checkpoint
from draftwood_train.judging import JUDGED_STEPS, RANKS, judged_steps, means, ranks_of
from draftwood_train.loop import Outcome, TrainingSettings
from draftwood_train.optimisers import Rates
from draftwood_train.packing import RowPacking, TextPiece
from draftwood_train.recipe import PackedRows, TargetWeights
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.run import Training
from draftwood_train.unrolled import shifted

RECORDS = RESULTS / "learning" / "records.jsonl"
BASE = "base"
LAST = "last weights"
NODES = (1, 8)
SETTINGS = TrainingSettings(
    20,
    "cpu_minutes",
    rows=4,
    rates=Rates(4e-3, 1e-3, warm_up=10, decay=0.5),
    judge_minutes=2.0,
)


@dataclass(frozen=True)
class Arm:
    """One way to learn.

    Attributes:
        changes: of the recipe's usual options.
        settings: of the training's.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, work: Path) -> Path:
        """Folder of its head."""
        return work / self.name.replace(" ", "-").replace(",", "")

    @property
    def recipe(self) -> EagleRecipe:
        return EagleRecipe(**{"unroll": 2, "unroll_from": 0.2, **self.changes})


ARMS = (
    Arm(BASE),
    Arm("another seed", settings={"seed": 1}),
    Arm("one step", {"unroll": 1}),
    Arm("second step at a quarter", {"later_share": 0.25}),
    Arm("three steps", {"unroll": 3}),
    Arm("three steps, two at a quarter", {"unroll": 3, "later_share": 0.25}),
    Arm("flatter half", settings={"flattest": 0.5}),
    Arm("sampled rows", {"sampled_rows": 1000}),
    Arm("lk in the last third", {"lk_from": 2 / 3}),
    Arm("averaged weights", settings={"average": 0.3}),
    Arm("replay", {"replay": 0.2}),
)


def train(data: Path, work: Path, minutes: float, only: str | None) -> None:
    """Train and judge each arm; what is there is not done again.

    Args:
        only: names of arms, with semicolons between; None for all.
    """
    known = {(each["name"], each["minutes"]) for each in read(RECORDS)}
    for arm in ARMS:
        chosen = not only or arm.name in only.split(";")
        if not chosen or (arm.name, minutes) in known:
            continue
        outcome = trained(arm, data, work, minutes)
        if outcome is not None and outcome.reason == "stopped":
            return
        judge(arm, data, work, minutes)


def training_of(arm: Arm, data: Path, work: Path, minutes: float) -> Training:
    """The training of an arm."""
    settings = replace(SETTINGS, amount=minutes, **arm.settings)
    command = "python -m benchmarks.training.learning train"
    return Training(arm.recipe, data, arm.folder(work), settings, resume=True, command=command)


def trained(arm: Arm, data: Path, work: Path, minutes: float) -> Outcome | None:
    """Train an arm to its end; None where its head is there. One that is stopped leaves none."""
    folder = arm.folder(work)
    if (folder / "config.json").is_file() and not (folder / "unfinished").is_file():
        return None
    outcome = training_of(arm, data, work, minutes).run(lambda line: print(line, flush=True))
    if outcome.reason == "stopped":
        (folder / "unfinished").touch()
    return outcome


def judge(arm: Arm, data: Path, work: Path, minutes: float) -> None:
    """Judge the head of an arm, and of the base its last weights too."""
    training, head = training_of(arm, data, work, minutes), load(arm.folder(work))
    state = Checkpoint.read(training.folder)
    facts: dict[str, Any] = {"minutes": minutes, "read": state.tokens, "seconds": state.seconds}
    facts |= {"step": state.step, "best_step": state.best_step}
    target = training.target(as_tensor(head.draft_tokens))
    network = head.network
    assert isinstance(network, EagleHead)
    names = [arm.name, LAST] if arm.name == BASE else [arm.name]
    found = []
    for name in names:
        if name == LAST:
            network.load_state_dict(state.head)
        every = judged(network, arm.recipe, training.packing("held-out"), target)
        found += [{"name": name, **facts, **record} for record in every]
    for record in found:
        append(RECORDS, record)
    print("judged", *names, flush=True)


@torch.no_grad()
def judged(
    head: EagleHead, recipe: EagleRecipe, packing: RowPacking, target: TargetWeights
) -> Iterator[dict[str, Any]]:
    """Records of the held-out texts: ranks of the true tokens, and the overlap at temperature 1."""
    exact = replace(target, embedding=target.embedding.float(), head=target.head.float())
    for number, length in enumerate(packing.texts.lengths):
        length = min(length, SETTINGS.places)
        rows = replace(packing, places=length).packed([[TextPiece(number, 0, length)]])
        steps = [step.states for step in recipe._unrolled(head.eval(), rows, exact, JUDGED_STEPS)]
        ranks = ranks_at(steps, rows, exact)
        if len(ranks):
            yield {
                "text": number,
                "ranks": ["".join(map(str, row)) for row in ranks.tolist()],
                "overlap": means(judged_steps(steps, rows, exact))["overlap"],
            }


def ranks_at(
    steps: Sequence[Tensor], rows: PackedRows, target: TargetWeights
) -> Int[Tensor, "places levels"]:
    """Ranks of the true tokens, level by level, at the places that have as many further ones."""
    last = len(steps) + 1
    counts = shifted(rows.is_answer, 1, False) & (shifted(rows.segments, last, -2) == rows.segments)
    found = [
        ranks_of(state[counts], shifted(rows.tokens, ahead + 1)[counts], target)
        for ahead, state in enumerate(steps, start=1)
    ]
    return torch.stack(found, dim=-1)


def best_tree(paths: Sequence[str], nodes: int) -> set[str]:
    """The nodes that hold most true paths; a node is a path of ranks from the root."""
    worth: dict[str, int] = {}
    for path in paths:
        for level in range(1, alive(path) + 1):
            worth[path[:level]] = worth.get(path[:level], 0) + 1
    order = sorted(worth, key=lambda node: (-worth[node], len(node), node))
    return set(order[:nodes])


def alive(path: str) -> int:
    """Levels of a path before its first miss."""
    miss = path.find(str(RANKS))
    return len(path) if miss < 0 else miss


def held(path: str, tree: set[str]) -> int:
    """Levels of a path that a tree holds."""
    level = 0
    while level < alive(path) and path[: level + 1] in tree:
        level += 1
    return level


def cells(records: Sequence[Mapping[str, Any]], nodes: int) -> list[dict[str, Any]]:
    """Places and tokens of each text, with the best tree of so many nodes for all of them."""
    tree = best_tree([path for each in records for path in each["ranks"]], nodes)
    return [
        {"name": "", "at": "", "temperature": 0.0, "prompt": str(each["text"])}
        | {"runs": len(each["ranks"])}
        | {"tokens": sum(1 + held(path, tree) for path in each["ranks"])}
        for each in records
    ]


def rows() -> Iterator[tuple[float, list[dict[str, str]]]]:
    """Rows by minutes: every arm, and beside the base on the same texts."""
    amounts: dict[float, dict[str, list[dict[str, Any]]]] = {}
    for record in read(RECORDS):
        amounts.setdefault(record["minutes"], {}).setdefault(record["name"], []).append(record)
    for minutes, arms in sorted(amounts.items()):
        base = statistical(cells(arms[BASE], 8)) if BASE in arms else []
        yield minutes, [row(name, own, base) for name, own in arms.items()]


def row(name: str, own: Sequence[Mapping[str, Any]], base: list[Any]) -> dict[str, str]:
    """One arm."""
    first = own[0]
    told = {
        "arm": name,
        "tokens read": f"{first['read'] / 1000:.0f}k",
        "tokens/s": f"{first['read'] / max(first['seconds'], 1e-9):,.0f}",
        "best at": f"{first['best_step'] / max(first['step'], 1):.0%}",
    }
    for nodes in NODES:
        told[f"{nodes} nodes"] = str(block_efficiency(statistical(cells(own, nodes))))
    overlap = sum(each["overlap"] * len(each["ranks"]) for each in own)
    told["overlap, T = 1"] = f"{overlap / sum(len(each['ranks']) for each in own):.3f}"
    ratio = block_efficiency_ratio(statistical(cells(own, 8)), base) if base else None
    told[f"beside {BASE}, 8 nodes"] = "" if name == BASE or ratio is None else str(ratio)
    return told


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("data", type=Path)
    training.add_argument("--work", type=Path, required=True)
    training.add_argument("--minutes", type=float, default=20.0, help="of each arm")
    training.add_argument("--only", metavar="A;B;C", help="arms, in their order")
    training.add_argument("--threads", type=int, default=1)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "show":
        show()
        return
    os.nice(19)
    torch.set_num_threads(given.threads)
    train(given.data, given.work, given.minutes, given.only)


def show() -> None:
    """The tables, in Markdown."""
    print_tables(
        (f"### Learning per hour, {minutes:g} minutes each", found) for minutes, found in rows()
    )


if __name__ == "__main__":
    main()
