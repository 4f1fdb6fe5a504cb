"""CTC-drafter's ablation at equal data: losses of frames by ways to read them, beside Medusa, Hydra
and EAGLE (Wen et al. 2024, arXiv:2412.00061, whose ablation is loss by verification).

    python -m benchmarks.training.frames train DATA --work FOLDER --tokens 300000
    python -m benchmarks.training.frames measure --work FOLDER --tokens 300000
    python -m benchmarks.training.frames show

DATA is what `draftwood train data DATA --tokens 1m --self-written 0.5` writes. Every arm sees as
many tokens of it in the same order, with the same rates; one that is stopped goes on with the same
command. Heads of CTC train at 128 of a row's places, all others at all of them. Trees of every way
to read frames have as many nodes after they are collapsed. Prompts, intervals and block efficiency
are those of `benchmarks.training.drafters`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.json_lines import RESULTS, read
from benchmarks.training.drafters import Arm, Cell, Measurement, eagle, statistical, train
from draftwood_bench.records.statistics import block_efficiency, block_efficiency_ratio
from draftwood_train.recipes.ctc import CtcRecipe
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.hydra import HydraRecipe
from draftwood_train.recipes.medusa import MedusaRecipe

RECORDS = RESULTS / "frames" / "records.jsonl"
READ_BY = ("paper", "released", "prefix", "raw")
BASE = "linear, kl"
TITLE = "CTC-drafter's ablation"
SMALL: tuple[Cell, ...] = ((8, 0.0), (8, 1.0))
GREEDY: tuple[Cell, ...] = ((8, 0.0), (16, 0.0), (63, 0.0))


def frames(**options: Any) -> CtcRecipe:
    """Frames of which each learns the token, or the distribution, at its own place."""
    return CtcRecipe(
        **{"frames": 5, "anchors": 128, "form": "linear", "loss_name": "kl", **options}
    )


ARMS = (
    Arm("medusa", "frames", MedusaRecipe(), cells=(*GREEDY, SMALL[1])),
    Arm("hydra", "frames", HydraRecipe(), cells=SMALL),
    Arm("linear, kl", "frames", frames(), cells=(*GREEDY, SMALL[1])),
    Arm(
        *("ctc", "frames", CtcRecipe(anchors=128, loss_name="ctc")),
        searches=READ_BY,
        cells=GREEDY,
    ),
    Arm("eagle-1", "frames", EagleRecipe(unroll=1, variant="eagle-1"), cells=SMALL),
    Arm("eagle-3", "frames", eagle(), cells=SMALL),
    Arm("linear, kl, pairs", "frames", frames(pairwise=64), cells=SMALL),
    Arm("linear, kl, three states", "frames", frames(features="three"), cells=SMALL),
    Arm("linear, kl, paced", "frames", frames(paced=True), cells=SMALL),
    Arm(
        *("linear, kl, all", "frames"),
        frames(features="three", pairwise=64, paced=True),
        cells=(*GREEDY, SMALL[1]),
    ),
    Arm("linear, ce", "frames", frames(loss_name="ce"), cells=SMALL),
    Arm("layer, kl, all", "frames", frames(
        form="layer", features="three", pairwise=64, paced=True
    ), cells=SMALL),
    Arm("layer, kl", "frames", frames(form="layer"), cells=SMALL),
    Arm(
        *("linear, ctc", "frames", CtcRecipe(anchors=128, loss_name="ctc", form="linear")),
        searches=READ_BY,
        cells=GREEDY,
    ),
    Arm("fspad", "frames", EagleRecipe(unroll=1, variant="fspad"), cells=SMALL),
)  # fmt: skip


def arms(tokens: int) -> list[Arm]:
    """Every arm at this amount of data."""
    return [replace(arm, tokens=tokens) for arm in ARMS]


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
    for at, temperature in ((f"{nodes} nodes", heat) for nodes, heat in (*GREEDY, SMALL[1])):
        column = f"{at}, T = {temperature:g}"
        cell, beside = (part(each, at, temperature) for each in (own, base))
        told[column] = str(block_efficiency(statistical(cell))) if cell else ""
        if (at, temperature) == ("8 nodes", 0.0):
            ratio = block_efficiency_ratio(statistical(cell), statistical(beside))
            told[f"beside {BASE}"] = "" if name == BASE or ratio is None else str(ratio)
    return told


def part(
    records: Sequence[Mapping[str, Any]], at: str, temperature: float
) -> list[Mapping[str, Any]]:
    """The records of one cell."""
    return [each for each in records if (each["at"], each["temperature"]) == (at, temperature)]


def measure(work: Path, tokens: int, only: str | None) -> None:
    """Decode with the heads that are there; what is measured is not measured again."""
    measurement = Measurement(records=RECORDS)
    for arm in arms(tokens):
        folder = arm.folder(work)
        if (not only or arm.name in only.split(";")) and (folder / "config.json").is_file():
            measurement.arm(arm, folder)
            print(arm.name, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "measure"):
        command = commands.add_parser(name)
        if name == "train":
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
    import torch

    torch.set_num_threads(given.threads)
    if given.command == "train":
        train(given.data, given.work, given.only, False, arms(given.tokens))
    else:
        measure(given.work, given.tokens, given.only)


def show() -> None:
    """The tables, in Markdown."""
    from benchmarks.common.processes import print_table

    for amount, rows in tables():
        print_table(rows, f"### {amount:,} tokens")
        print()


if __name__ == "__main__":
    main()
