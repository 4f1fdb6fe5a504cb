"""CTC-drafter's ablation at equal data: losses of frames by ways to read them, beside Medusa, Hydra
and EAGLE (Wen et al. 2024, arXiv:2412.00061, whose ablation is loss by verification).

    python -m benchmarks.training.frames train DATA --work FOLDER --tokens 300000
    python -m benchmarks.training.frames measure --work FOLDER --tokens 300000
    python -m benchmarks.training.frames judge DATA --work FOLDER --tokens 300000
    python -m benchmarks.training.frames show

DATA is what `draftwood train data DATA --tokens 1m --self-written 0.5` writes. Every arm sees as
many tokens of it in the same order, with the same rates; one that is stopped goes on with the same
command. Heads of CTC train at 128 of a row's places, all others at all of them. Trees of every way
to read frames have as many nodes after they are collapsed. Prompts, intervals and block efficiency
are those of `benchmarks.training.drafters`.

`judge` decodes nothing: it counts how much of the held-out greedy answers trees hold, at every
fourth place, for heads whose frames do not depend on what was drafted. So it can afford trees of 63
nodes. The shipped CTC head is the arm "prefix+lk" at 1,643,000 tokens of other data.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.training.drafters import (
    Arm,
    Cell,
    Measurement,
    eagle,
    statistical,
    train,
    training_of,
)
from draftwood.heads.ctc import CtcHead
from draftwood.heads.folder import load
from draftwood.heads.lattice import Frames, Unmerged
from draftwood.heads.medusa import MedusaHead
from draftwood.heads.prefix_search import (
    collapsed_alignments,
    likeliest_prefixes,
    released_paths,
)
from draftwood.heads.trained import TrainedHead
from draftwood.tree import DraftTree
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_train.medusa_heads import level_states
from draftwood_train.recipes.ctc import CtcRecipe, depth_of, frame_states, judged_places, reader
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.hydra import HydraRecipe
from draftwood_train.recipes.medusa import MedusaRecipe

RECORDS = RESULTS / "frames" / "records.jsonl"
JUDGED = RESULTS / "frames" / "judged.jsonl"
READ_BY = ("paper", "released", "prefix", "raw")
BASE = "linear, kl"
TITLE = "CTC-drafter's ablation"
HELD = "Ways to read frames, tokens per pass on held-out text"
CELLS: tuple[Cell, ...] = ((8, 0.0), (8, 1.0))
NODES = (8, 16, 63)
EVERY = 4  # places


def frames(**options: Any) -> CtcRecipe:
    """Frames of which each learns the token, or the distribution, at its own place."""
    return CtcRecipe(
        **{"frames": 5, "anchors": 128, "form": "linear", "loss_name": "kl", **options}
    )


ARMS = (
    Arm("medusa", "frames", MedusaRecipe()),
    Arm("hydra", "frames", HydraRecipe()),
    Arm("linear, kl", "frames", frames()),
    Arm("ctc", "frames", CtcRecipe(anchors=128, loss_name="ctc"), searches=READ_BY),
    Arm("eagle-1", "frames", EagleRecipe(unroll=1, variant="eagle-1")),
    Arm("eagle-3", "frames", eagle()),
    Arm("linear, kl, pairs", "frames", frames(pairwise=64)),
    Arm("linear, kl, three states", "frames", frames(features="three")),
    Arm("linear, kl, paced", "frames", frames(paced=True)),
    Arm("linear, kl, all", "frames", frames(features="three", pairwise=64, paced=True)),
    Arm("linear, ce", "frames", frames(loss_name="ce")),
    Arm("layer, kl", "frames", frames(form="layer")),
    Arm(
        "layer, kl, all",
        "frames",
        frames(form="layer", features="three", pairwise=64, paced=True),
    ),
    Arm(
        "linear, ctc",
        "frames",
        CtcRecipe(anchors=128, loss_name="ctc", form="linear"),
        searches=READ_BY,
    ),
    Arm("prefix+lk", "frames", CtcRecipe(frames=6, anchors=128), searches=READ_BY),
    Arm("fspad", "frames", EagleRecipe(unroll=1, variant="fspad")),
)


def arms(tokens: int) -> list[Arm]:
    """Every arm at this amount of data."""
    return [replace(arm, tokens=tokens, cells=CELLS) for arm in ARMS]


def tables() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Rows by amount of data; every arm stands beside the linear frames."""
    amounts: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for record in read(RECORDS):
        amounts.setdefault(record["data"], {}).setdefault(record["name"], []).append(record)
    for amount in sorted(amounts):
        found = amounts[amount]
        yield amount, [row(name, own, found.get(BASE, [])) for name, own in found.items()]


def row(
    name: str, own: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One drafter: block efficiencies by nodes and temperature, and beside the base."""
    told = {"drafter": name, "weights": f"{own[0]['weights'] / 1e6:.1f}M"}
    for nodes, temperature in CELLS:
        cell, beside = (part(each, f"{nodes} nodes", temperature) for each in (own, base))
        told[f"{nodes} nodes, T = {temperature:g}"] = str(block_efficiency(statistical(cell)))
        if not temperature:
            ratio = block_efficiency_ratio(statistical(cell), statistical(beside))
            told[f"beside {BASE}"] = "" if name == BASE or ratio is None else str(ratio)
    return told


def part(
    records: Sequence[Mapping[str, Any]], at: str, temperature: float
) -> list[Mapping[str, Any]]:
    """The records of one cell."""
    return [each for each in records if (each["at"], each["temperature"]) == (at, temperature)]


def judged() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Rows by amount of data: what trees of each search hold of held-out text."""
    amounts: dict[int, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for record in read(JUDGED):
        found = amounts.setdefault(record["data"], {})
        found.setdefault(record["name"], {})[record["nodes"]] = record
    for amount in sorted(amounts):
        rows = []
        for name, cells in amounts[amount].items():
            told = {f"{nodes} nodes": held(cells[nodes]) for nodes in NODES if nodes in cells}
            rows.append({"frames": name, **told})
        yield amount, rows


def held(record: Mapping[str, Any]) -> str:
    """Tokens per pass of a judged cell, with its interval over texts."""
    sums = zip(record["places"], record["tokens"], strict=True)
    texts = [
        {"name": "", "at": "", "temperature": 0.0, "prompt": str(text), "runs": places}
        | {"tokens": tokens}
        for text, (places, tokens) in enumerate(sums)
    ]
    return str(block_efficiency(statistical(texts)))


def measure(work: Path, tokens: int, only: str | None) -> None:
    """Decode with the heads that are there; what is measured is not measured again."""
    measurement = Measurement(records=RECORDS)
    for arm in arms(tokens):
        folder = arm.folder(work)
        if (not only or arm.name in only.split(";")) and (folder / "config.json").is_file():
            measurement.arm(arm, folder)
            print(arm.name, flush=True)


def judge(data: Path, work: Path, tokens: int, only: str | None) -> None:
    """Judge the heads that are there, by each way to read their frames."""
    known = {(each["name"], each["data"]) for each in read(JUDGED)}
    for arm in arms(tokens):
        folder = arm.folder(work)
        name = arm.name if arm.searches == ("",) else f"{arm.name}, {arm.searches[0]}"
        chosen = not only or arm.name in only.split(";")
        if chosen and (name, tokens) not in known and (folder / "config.json").is_file():
            for record in judged_arm(arm, data, folder):
                append(JUDGED, record)
            print(arm.name, flush=True)


def judged_arm(arm: Arm, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Records of a head: of each text its places, and the tokens that trees hold there."""
    trained = load(folder)
    if not isinstance(trained.head, CtcHead | MedusaHead) or arm.name == "hydra":
        return
    found = list(held_out(arm, data, folder, trained))
    for search, nodes in product(arm.searches, NODES):
        sums: dict[int, list[int]] = {}
        for text, probs, label, frames_of in found:
            depth = depth_of(label, tree_of(search, probs, frames_of, nodes))
            own = sums.setdefault(text, [0, 0])
            own[0], own[1] = own[0] + 1, own[1] + depth + 1
        places, held_tokens = zip(*sums.values(), strict=True)
        name = f"{arm.name}, {search}" if search else arm.name
        yield {"name": name, "nodes": nodes, "data": arm.tokens} | {
            "places": places,
            "tokens": held_tokens,
        }


def tree_of(search: str, probs: Tensor, frames_of: Frames, nodes: int) -> DraftTree:
    """Tree of the frames by one way to read them."""
    if search == "paper":
        return collapsed_alignments(probs, nodes, 10, 4096)
    if search == "released":
        return released_paths(probs, nodes)
    if search == "raw":
        return likeliest_prefixes(Unmerged(probs, has_blank=True), nodes)
    return likeliest_prefixes(frames_of, nodes)


@torch.no_grad()
def held_out(
    arm: Arm, data: Path, folder: Path, trained: TrainedHead
) -> Iterator[tuple[int, Tensor, list[int], Frames]]:
    """Places of held-out texts: the text, what frames say there, and what follows."""
    training, head = training_of(arm, data, folder), trained.head
    target = training.target(trained.draft_tokens)
    packing, before = training.packing("held-out").with_rows(4, None), 0
    for batch in packing.plan(0):
        rows = packing.packed(batch)
        chosen, labels = judged_places(rows, target, 8, EVERY)
        row, place = chosen.nonzero().T
        numbers = before + 1000 * row + rows.segments[row, place]
        before += 1000 * len(batch)
        if isinstance(head, CtcHead):
            probs = head.log_probs(frame_states(head, rows, target, chosen), target.head).exp()
            reads = reader(head, target)
        else:
            assert isinstance(head, MedusaHead)
            states = torch.stack(list(level_states(head, rows, target)), dim=2)[chosen]
            probs, reads = (states @ target.head.to(states.dtype).T).softmax(-1), alone
        for number, each, label in zip(numbers.tolist(), probs, labels.tolist(), strict=True):
            yield number, each, label, reads(each)


def alone(probs: Tensor) -> Frames:
    """Frames that do not know each other."""
    return Unmerged(probs, has_blank=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "measure", "judge"):
        command = commands.add_parser(name)
        if name != "measure":
            command.add_argument("data", type=Path)
        command.add_argument("--work", type=Path, required=True)
        command.add_argument("--tokens", type=int, default=300_000)
        command.add_argument("--only", metavar="A;B;C", help="arms, in their order")
        command.add_argument("--threads", type=int, default=2)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "show":
        show()
        return
    torch.set_num_threads(given.threads)
    if given.command == "train":
        train(given.data, given.work, given.only, False, arms(given.tokens))
    elif given.command == "judge":
        judge(given.data, given.work, given.tokens, given.only)
    else:
        measure(given.work, given.tokens, given.only)


def show() -> None:
    """The tables, in Markdown."""
    from benchmarks.common.processes import print_table

    for title, found in ((TITLE, tables()), (HELD, judged())):
        for amount, rows in found:
            print_table(rows, f"### {title}, {amount:,} tokens")
            print()


if __name__ == "__main__":
    main()
