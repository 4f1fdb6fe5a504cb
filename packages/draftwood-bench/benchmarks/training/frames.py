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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.training.drafters import (
    Arm,
    Cell,
    chosen,
    eagle,
    measure,
    statistical,
    train,
    training_of,
)
from draftwood.heads.folder import load
from draftwood.heads.lattice import Unmerged
from draftwood.heads.prefix_search import (
    collapsed_alignments,
    likeliest_prefixes,
    released_paths,
)
from draftwood.heads.trained import TrainedHead
from draftwood.tree import DraftTree
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.medusa import MedusaHead
from draftwood_train.medusa_heads import level_states
from draftwood_train.recipes.ctc import CtcRecipe, depth_of, frame_states, judged_places, reader
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.hydra import HydraRecipe
from draftwood_train.recipes.medusa import MedusaRecipe

RECORDS = RESULTS / "frames" / "records.jsonl"
JUDGED = RESULTS / "frames" / "judged.jsonl"
READ_BY = ("paper", "released", "prefix", "raw")
BESIDE = (("paper", "prefix"), ("released", "prefix"), ("raw", "paper"))
COMMAND = "python -m benchmarks.training.frames train DATA --work FOLDER"
BASE = "linear, kl"
TITLE = "CTC-drafter's ablation"
HELD = "Ways to read frames, tokens per pass on held-out text"
HELD_PAIRS = "Ways to read frames of held-out text, beside each other"
CELLS: tuple[Cell, ...] = ((8, 0.0), (8, 1.0))
NODES = (8, 16, 63)
AMOUNTS = (300_000, 1_000_000, 3_000_000)  # tokens at which arms are trained
EVERY = 4  # places
Grow = Callable[[Tensor, int], DraftTree]
"""From the probabilities of a place's frames to a tree of so many nodes."""


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
    for amount, records in sorted(grouped(read(RECORDS), "data").items()):
        found = grouped(records, "name")
        yield amount, [row(name, own, found.get(BASE, [])) for name, own in found.items()]


def row(
    name: str, own: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """One drafter: block efficiencies by nodes and temperature, and beside the base."""
    told = {"drafter": name, "weights": f"{own[0]['weights'] / 1e6:.1f}M"}
    cells, others = (grouped(each, "at", "temperature") for each in (own, base))
    for nodes, temperature in CELLS:
        at = f"{nodes} nodes", temperature
        cell, beside = cells.get(at, []), others.get(at, [])
        told[f"{nodes} nodes, T = {temperature:g}"] = str(block_efficiency(statistical(cell)))
        if not temperature:
            ratio = block_efficiency_ratio(statistical(cell), statistical(beside))
            told[f"beside {BASE}"] = "" if name == BASE or ratio is None else str(ratio)
    return told


def judged() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Rows by amount of data: what trees of each search hold of held-out text."""
    for amount, records in sorted(grouped(read(JUDGED), "data").items()):
        rows = []
        for name, cells in grouped(records, "name").items():
            told = {f"{cell['nodes']} nodes": str(block_efficiency(texts(cell))) for cell in cells}
            rows.append({"frames": name, **told})
        yield amount, rows


def judged_pairs() -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Rows by amount of data: ways to read the frames of one head, beside each other."""
    for amount, records in sorted(grouped(read(JUDGED), "data").items()):
        cells = {(cell["name"], cell["nodes"]): texts(cell) for cell in records}
        rows = []
        for arm, (search, other) in product(ARMS, BESIDE):
            names = f"{arm.name}, {search}", f"{arm.name}, {other}"
            known = [nodes for nodes in NODES if all((name, nodes) in cells for name in names)]
            ratios = {
                f"{nodes} nodes": str(
                    block_efficiency_ratio(*(cells[name, nodes] for name in names))
                )
                for nodes in known
            }
            rows += [{"frames": names[0], "beside": other, **ratios}] if known else []
        if rows:
            yield amount, rows


def texts(record: Mapping[str, Any]) -> list[Record]:
    """Places and tokens of a judged cell, text by text."""
    sums = zip(record["places"], record["tokens"], strict=True)
    return statistical(
        [
            {"name": "", "at": "", "temperature": 0.0, "prompt": str(text), "runs": places}
            | {"tokens": tokens}
            for text, (places, tokens) in enumerate(sums)
        ]
    )


def judge(data: Path, work: Path, heads: Sequence[Arm]) -> None:
    """Judge these heads, by each way to read their frames."""
    known = {(each["name"], each["data"]) for each in read(JUDGED)}
    for arm in heads:
        name = arm.name if arm.searches == ("",) else f"{arm.name}, {arm.searches[0]}"
        if (name, arm.tokens) not in known:
            for record in judged_arm(arm, data, arm.folder(work)):
                append(JUDGED, record)
            print(arm.name, flush=True)


def judged_arm(arm: Arm, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Records of a head: of each text its places, and the tokens that trees hold there."""
    trained = load(folder)
    if not foresees(trained.network):
        return
    found = list(held_out(arm, data, folder, trained))
    for search, nodes in product(arm.searches, NODES):
        sums: dict[int, list[int]] = {}
        for text, probs, label, grow in found:
            depth = depth_of(label, tree_of(search, probs, grow, nodes))
            own = sums.setdefault(text, [0, 0])
            own[0], own[1] = own[0] + 1, own[1] + depth + 1
        places, held_tokens = zip(*sums.values(), strict=True)
        name = f"{arm.name}, {search}" if search else arm.name
        yield {"name": name, "nodes": nodes, "data": arm.tokens} | {
            "places": places,
            "tokens": held_tokens,
        }


def foresees(head: nn.Module) -> bool:
    """True if what a head drafts does not depend on what was drafted before it."""
    if isinstance(head, MedusaHead):
        return not head.config.sees_drafted
    return isinstance(head, CtcHead)


def tree_of(search: str, probs: Tensor, grow: Grow, nodes: int) -> DraftTree:
    """Tree of the frames by one way to read them."""
    if search == "paper":
        return collapsed_alignments(probs, nodes, 10, 4096)
    if search == "released":
        return released_paths(probs, nodes)
    if search == "raw":
        return likeliest_prefixes(Unmerged(probs, has_blank=True), nodes)
    return grow(probs, nodes)


@torch.no_grad()
def held_out(
    arm: Arm, data: Path, folder: Path, trained: TrainedHead
) -> Iterator[tuple[int, Tensor, list[int], Grow]]:
    """Places of held-out texts: the text, what frames say, what follows, and how trees grow."""
    training, head = training_of(arm, data, folder), trained.network
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
            grow = reader(head, target)
        else:
            assert isinstance(head, MedusaHead)
            states = torch.stack(list(level_states(head, rows, target)), dim=2)[chosen]
            probs, grow = (states @ target.head.to(states.dtype).T).softmax(-1), alone
        for number, each, label in zip(numbers.tolist(), probs, labels.tolist(), strict=True):
            yield number, each, label, grow


def alone(probs: Tensor, nodes: int) -> DraftTree:
    """Tree of frames that do not know each other."""
    return likeliest_prefixes(Unmerged(probs, has_blank=False), nodes)


def main() -> None:
    parser = parser_of(__doc__)
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
    asked = chosen(arms(given.tokens), given.only)
    trained = [arm for arm in asked if arm.is_trained(given.work)]
    if given.command == "train":
        train(given.data, given.work, asked, f"{COMMAND} --tokens {given.tokens}", measures=False)
    elif given.command == "judge":
        judge(given.data, given.work, trained)
    else:
        measure(trained, given.work, RECORDS)


def show() -> None:
    """The tables, in Markdown."""
    for title, found in ((TITLE, tables()), (HELD, judged()), (HELD_PAIRS, judged_pairs())):
        print_tables((f"### {title}, {amount:,} tokens", rows) for amount, rows in found)


if __name__ == "__main__":
    main()
