"""Block efficiency of tree methods at fixed draft length and at fixed target budget.

The protocol of Recursive Speculative Decoding (Jeon et al. 2024, arXiv:2402.14160): every method at draft lengths 2
to 5, and at target budgets of 6, 10, 14, 21 and 30 drafted tokens with several shapes each, of which the best counts.

    python benchmarks/fetch_models.py
    python benchmarks/rsd.py run --temperature 1.0 --output benchmarks/results/rsd.jsonl
    python benchmarks/rsd.py report benchmarks/results/rsd.jsonl

Results are appended configuration by configuration; a run that was stopped goes on where it was.

The engine, the drafters and the verifiers are the library's own. Only the target is run thriftily: rules that walk from
the root read its distribution at the accepted nodes alone, so these nodes are run when they are asked for, and the
sequences under way share one padded run. ``--whole-trees`` runs every node of every tree instead, which the rules that
read the leaves first (traversal) always get.
"""

import argparse
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from rich.console import Console
from rich.progress import track
from transformers import PreTrainedTokenizerBase

import draftwood
from data import append_record, folder, markdown, read_records
from draftwood.drafters import DraftModel
from draftwood.engine import Options, generate
from draftwood.models.base import Keep, Output, Run
from draftwood.models.hub import load_pretrained
from draftwood.models.session import PooledSession
from draftwood.models.transformers import TransformersModel
from draftwood.sampling import Sampling
from draftwood.shapes import Independent, Shape, StochasticBeam, Widths
from draftwood.stats import Stats
from draftwood.tree import DraftTree
from draftwood.verifiers import GreedyPlusOne, KSeq, Rejection, Traversal, Verifier

BUDGET_SHAPES = {  # target budget: (chains or beams, length) and branching vectors; 1^n is written out below
    6: ([(2, 3), (3, 2)], ["2,1,1", "2,2", "3,1"]),
    10: ([(2, 5), (5, 2)], ["2,1,1,1,1", "2,2,1", "5,1"]),
    14: ([(2, 7), (7, 2)], ["2,1,1,1,1,1,1", "2,2,2", "7,1"]),
    21: ([(3, 7), (7, 3)], ["3,1,1,1,1,1,1", "3,2,2", "7,1,1"]),
    30: ([(5, 6), (6, 5)], ["2,2,2,2", "5,1,1,1,1,1", "6,1,1,1,1"]),
}
LENGTHS = (2, 3, 4, 5)
BREADTH = 3  # siblings at the root, chains or beams in the comparison at fixed length


@dataclass(frozen=True)
class Configuration:
    """One row of a table: a method, its tree and what the tree is compared at."""

    method: str
    shape: Shape
    verifier: Verifier
    at: str  # "length 3" or "budget 14"

    @property
    def key(self) -> str:
        return f"{self.method} | {self.at} | {self.shape}"

    @property
    def reads_leaves(self) -> bool:
        return isinstance(self.verifier, Traversal)


def method_shapes(vector: Sequence[int], chains: tuple[int, int]) -> dict[str, tuple[Shape, Verifier]]:
    """Every method with a branching vector (tree methods) or with so many chains or beams of a length."""
    widths, (count, length) = tuple(vector), chains
    return {
        "spectr": (Independent(count, length), KSeq()),
        "specinfer": (Widths(widths, "independent"), Rejection()),
        "rsd-c": (Widths(widths), Rejection()),
        "rsd-s": (StochasticBeam(count, length), Rejection()),
        "rsd-c + greedy-plus-one": (Widths(widths, "greedy-plus-one"), GreedyPlusOne()),
        "rsd-c + traversal": (Widths(widths), Traversal()),
        "rsd-s + traversal": (StochasticBeam(count, length), Traversal()),
    }


def configurations() -> list[Configuration]:
    """The published comparison: five methods, every length, every shape of every budget."""
    published = ("speculative", "rsd-c", "rsd-s", "specinfer", "spectr")
    return [row for row in _every_row() if row.method in published]


def variants(records: Sequence[dict]) -> list[Configuration]:
    """Other verifiers on the tree that served RSD best at each length and budget, as far as that is known."""
    rows = []
    for row in _every_row():
        base, _, rule = row.method.partition(" + ")
        rivals = [r for r in records if r["method"] == base and r["at"] == row.at]
        plain_shape = repr(row.shape).replace("draw='greedy-plus-one'", "draw='distinct'")
        if rule and rivals and max(rivals, key=lambda r: interval(r["per_prompt"], 1)[0])["shape"] == plain_shape:
            rows.append(row)
    return sorted(rows, key=lambda row: (row.reads_leaves, row.method != "rsd-s + traversal", row.shape.nodes))


def _every_row() -> list[Configuration]:
    rows = {}
    for length in LENGTHS:
        shapes = method_shapes((BREADTH,) + (1,) * (length - 1), (BREADTH, length))
        shapes["speculative"] = (Widths((1,) * length), Rejection())
        for method, (shape, verifier) in shapes.items():
            row = Configuration(method, shape, verifier, f"length {length}")
            rows[row.key] = row
    for budget, (pairs, vectors) in BUDGET_SHAPES.items():
        for place, text in enumerate(vectors):
            shapes = method_shapes(tuple(map(int, text.split(","))), pairs[min(place, 1)])
            shapes["speculative"] = (Widths((1,) * budget), Rejection())
            for method, (shape, verifier) in shapes.items():
                row = Configuration(method, shape, verifier, f"budget {budget}")
                rows[row.key] = row
    return sorted(rows.values(), key=lambda row: _urgency(row, rows.values()))


def _urgency(row: Configuration, rows: Iterable[Configuration]) -> tuple[int, int]:
    """What fills the tables comes first, then other shapes, then long chains, whose yield ends early.

    At a fixed budget the broadest tree comes first: a weak drafter gains most near the root.
    """
    kind, size = row.at.split()
    if kind == "length":
        return 0, int(size)
    if row.method == "speculative":
        return 3, int(size)
    rivals = [other.shape for other in rows if (other.method, other.at) == (row.method, row.at)]
    return (1 if breadth(row.shape) == max(map(breadth, rivals)) else 2), int(size)


def breadth(shape: Shape) -> int:
    """Children of the root."""
    return int(short(repr(shape)).strip("()").replace("x", ",").split(",")[0])


class Together:
    """Runs several tasks in turns on one thread and merges the model runs they wait for into padded batches."""

    def __init__(self) -> None:
        self.waiting: dict[greenlet, tuple[Shared, object, tuple[int, ...]]] = {}
        self.scheduler = getcurrent()

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        ready: list[tuple[greenlet, object]] = [(greenlet(task), None) for task in tasks]
        while ready:
            for task, answer in ready:
                task.switch() if answer is None else task.switch(answer)
            ready = self._serve() if self.waiting else []

    def wait(self, model: "Shared", part: object, hidden: Sequence[int]) -> Output:
        self.waiting[getcurrent()] = (model, part, tuple(hidden))
        return self.scheduler.switch()

    def _serve(self) -> list[tuple[greenlet, object]]:
        """One run, of the cheaper model if any task waits for it, so that runs of the dear one serve many."""
        models = [model for model, _, _ in self.waiting.values()]
        model = min(set(models), key=lambda candidate: candidate.size)
        tasks = [task for task, (wanted, _, _) in self.waiting.items() if wanted is model]
        tasks.sort(key=lambda task: self.waiting[task][1].place.slot)  # type: ignore[attr-defined]
        parts = [self.waiting.pop(task)[1] for task in tasks]
        outputs = TransformersModel.run(model, parts)  # type: ignore[arg-type]
        return list(zip(tasks, outputs, strict=True))


class Shared(TransformersModel):
    """A model whose runs are merged with those of the other tasks."""

    def __init__(self, hf_model: object, together: Together) -> None:
        super().__init__(hf_model)  # type: ignore[arg-type]
        self.together = together
        self.size = sum(parameter.numel() for parameter in hf_model.parameters())  # type: ignore[attr-defined]

    def run(self, parts, keep: Keep = "all", hidden: Sequence[int] = ()) -> list[Output]:  # type: ignore[no-untyped-def]
        if len(parts) > 1:
            return super().run(parts, keep, hidden)
        output = self.together.wait(self, parts[0], hidden)
        return [Output(output.logits[-1:] if keep == "last" else output.logits)]


class Thrifty(Shared):
    """A target that runs a node when its distribution is asked for."""

    def start(self) -> PooledSession:
        return ThriftySession(self)

    def forward(self, runs: Sequence[Run], hidden: Sequence[int] = ()) -> list[Output]:
        return [Output(RowsOnDemand(run.session, run.tree)) for run in runs]  # type: ignore[arg-type]


class ThriftySession(PooledSession):
    def commit(self, path: Sequence[int]) -> None:
        """The accepted nodes were run one after the other, so they are in the cache already."""


class RowsOnDemand:
    """Logits by node, for verifiers that read a node only after its parent was accepted."""

    def __init__(self, session: ThriftySession, tree: DraftTree) -> None:
        self.session, self.tree, self.depth = session, tree, -1

    def cpu(self) -> "RowsOnDemand":
        return self

    def __getitem__(self, rows: slice) -> torch.Tensor:
        depth = len(self.tree.path_to(rows.start))
        if depth != self.depth + 1:
            raise RuntimeError("this verifier does not walk from the root; run whole trees")
        self.depth = depth
        return self.session.extend([self.tree.token_list[rows.start]]).logits


def story_prompts(count: int, tokenizer: PreTrainedTokenizerBase, length: int = 14) -> list[list[int]]:
    """Beginnings of stories from ``tinystories_sample``, all of one length in tokens."""
    path = folder() / "tinystories_sample" / "tiny_stories.txt"
    stories = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 200]
    chosen = random.Random(0).sample(stories, count)
    return [tokenizer(story)["input_ids"][:length] for story in chosen]


def measure(row: Configuration, arguments: argparse.Namespace, models: dict[str, object], prompts: list) -> dict:
    """Run one configuration over all prompts; per prompt the tokens emitted after the first and the target's runs."""
    together = Together()
    whole = row.reads_leaves or arguments.whole_trees
    target = (Shared if whole else Thrifty)(models["target"], together)
    draft = Shared(models["draft"], together)
    drafter = DraftModel(draft, row.shape)
    found: dict[int, Stats] = {}

    def task(number: int) -> Callable[[], None]:
        def decode() -> None:
            options = Options(Sampling(arguments.temperature), arguments.tokens, seed=number)
            steps = generate(target, drafter, row.verifier, prompts[number], options)
            found[number] = Stats.of(steps)

        return decode

    started = time.perf_counter()
    with torch.no_grad():
        together.scheduler = getcurrent()
        together.run([task(number) for number in range(len(prompts))])
    pairs = [[found[n].tokens - 1, found[n].target_runs] for n in range(len(prompts))]
    accepted = sum((found[n] for n in range(len(prompts))), Stats()).accepted_by_depth
    return {"per_prompt": pairs, "accepted_by_depth": accepted, "seconds": round(time.perf_counter() - started, 1)}


def run(arguments: argparse.Namespace) -> None:
    path = Path(arguments.output)
    target = load_pretrained(arguments.model)
    models = {"target": target.model, "draft": load_pretrained(arguments.draft_model, dtype="bfloat16").model}
    prompts = story_prompts(arguments.prompts, target.tokenizer)
    label = {"temperature": arguments.temperature, "prompts": arguments.prompts, "tokens": arguments.tokens}
    for choose in (lambda done: configurations(), variants):
        done = [r for r in read_records(path) if all(r[name] == value for name, value in label.items())]
        keys = {record["key"] for record in done}
        left = [row for row in choose(done) if row.key not in keys and arguments.only in row.key]
        for row in track(left, description=f"T={arguments.temperature}", console=Console(stderr=True)):
            twin = next((r for r in done if (r["method"], r["shape"]) == (row.method, repr(row.shape))), None)
            result = measured(twin) if twin else measure(row, arguments, models, prompts)
            record = {"key": row.key, "method": row.method, "at": row.at, "shape": repr(row.shape), **label}
            record |= {"nodes": row.shape.nodes, "whole_trees": row.reads_leaves or arguments.whole_trees, **result}
            record |= {"model": arguments.model, "draft_model": arguments.draft_model, **environment()}
            append_record(path, record)
            efficiency = interval(result["per_prompt"], 1)[0]
            print(f"{row.key}: {efficiency:.3f} in {result['seconds']} s", flush=True)


def measured(record: dict) -> dict:
    """The result of the same method and tree in another table: seeds are fixed, so running it again changes nothing."""
    return {name: record[name] for name in ("per_prompt", "accepted_by_depth", "seconds")}


def environment() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "draftwood": draftwood.__version__,
        "commit": commit,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def interval(pairs: list[list[int]], draws: int = 2000) -> tuple[float, float, float]:
    """Pooled tokens per run with a bootstrap 95 % interval over prompts."""
    return ratio_interval([pairs], draws)


def ratio_interval(sides: Sequence[list[list[int]]], draws: int = 2000) -> tuple[float, float, float]:
    """The same, or the ratio of two such numbers over the same prompts, resampled in pairs."""
    counts = np.array(sides)  # [sides prompts 2]
    chosen = np.random.default_rng(0).integers(0, counts.shape[1], (draws, counts.shape[1]))

    def ratio(totals: np.ndarray) -> np.ndarray:
        efficiencies = totals[..., 0] / totals[..., 1]
        return efficiencies[0] / efficiencies[1] if len(efficiencies) == 2 else efficiencies[0]

    low, high = np.quantile(ratio(counts[:, chosen].sum(axis=2)), (0.025, 0.975))
    return float(ratio(counts.sum(axis=1))), float(low), float(high)


def report(arguments: argparse.Namespace) -> None:
    """Tables by temperature: methods down, lengths and budgets across, the best shape of each."""
    records = [record for path in arguments.files for record in read_records(Path(path))]
    for temperature in sorted({record["temperature"] for record in records}, reverse=True):
        for kind in ("length", "budget"):
            here = [r for r in records if r["temperature"] == temperature and r["at"].startswith(kind)]
            print(f"\nT = {temperature}, block efficiency at fixed {kind} [95 % interval]\n")
            print("\n".join(table(here, kind)))


def table(records: list[dict], kind: str) -> Iterator[str]:
    columns = sorted({int(record["at"].split()[1]) for record in records})
    yield f"| method | {' | '.join(f'{kind} {column}' for column in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    order = list(dict.fromkeys(["speculative", *method_shapes((1,), (1, 1))]))
    for method in order:
        cells = []
        for column in columns:
            found = [r for r in records if r["method"] == method and r["at"] == f"{kind} {column}"]
            best = max((interval(r["per_prompt"]) + (r["shape"],) for r in found), default=None)
            shape = "" if best is None or kind == "length" else f" {short(best[3])}"
            cells.append("" if best is None else f"{best[0]:.2f} [{best[1]:.2f}, {best[2]:.2f}]{shape}")
        yield f"| {method} | {' | '.join(cells)} |"


def orderings(arguments: argparse.Namespace) -> None:
    """For each published ordering, where it holds, with paired bootstrap intervals of the ratio."""
    records = [record for path in arguments.files for record in read_records(Path(path))]
    claims = [("rsd-s", "rsd-c"), ("rsd-c", "spectr"), ("rsd-c", "specinfer"), ("spectr", "speculative")]
    claims += [("rsd-c + greedy-plus-one", "rsd-c"), ("rsd-c + traversal", "rsd-c"), ("rsd-s + traversal", "rsd-s")]
    head = ["claim", "T", "compared at", "holds", "clearly", "against it clearly", "mean ratio"]
    rows = []
    for better, worse in claims:
        for temperature in sorted({r["temperature"] for r in records}, reverse=True):
            for kind in ("length", "budget"):
                here = [r for r in records if r["temperature"] == temperature and r["at"].startswith(kind)]
                ratios = [paired(here, better, worse, at) for at in dict.fromkeys(r["at"] for r in here)]
                known = [ratio for ratio in ratios if ratio]
                if known:
                    mean = sum(ratio for ratio, _, _ in known) / len(known)
                    cells = [sum(r >= 1 for r, _, _ in known), sum(low > 1 for _, low, _ in known)]
                    cells += [sum(high < 1 for _, _, high in known)]
                    counts = [f"{cell} of {len(known)}" for cell in cells]
                    rows.append([f"{better} >= {worse}", temperature, f"fixed {kind}", *counts, f"{mean:.3f}"])
    print(markdown(head, rows))
    print('\n"Clearly" means that the 95 % interval of the ratio, resampled over prompts in pairs, excludes 1.')


def paired(records: list[dict], better: str, worse: str, at: str) -> tuple[float, float, float] | None:
    """Ratio of the best shapes' block efficiencies with its interval; None where one is not measured."""
    sides = []
    for method in (better, worse):
        found = [r["per_prompt"] for r in records if r["method"] == method and r["at"] == at]
        if not found:
            return None
        sides.append(max(found, key=lambda pairs: interval(pairs, 1)[0]))
    return ratio_interval(sides)


def short(shape: str) -> str:
    """`(3, 2, 2)` or `3x7` for a printed shape."""
    numbers = "".join(c if c.isdigit() else " " for c in shape.split("draw=")[0].replace("budget=None", "")).split()
    return "x".join(numbers) if shape.startswith(("Independent", "Stoch")) else f"({','.join(numbers)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure what is not measured yet")
    runs.add_argument("--model", default="tinyllama-1.1b")
    runs.add_argument("--draft-model", default="stories-15m")
    runs.add_argument("--temperature", type=float, default=1.0)
    runs.add_argument("--prompts", type=int, default=40)
    runs.add_argument("--tokens", type=int, default=64)
    runs.add_argument("--only", default="", help="only configurations whose key contains this")
    runs.add_argument("--whole-trees", action="store_true", help="run every node of every tree")
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print tables")
    reports.add_argument("files", nargs="+")
    reports.set_defaults(act=report)
    claims = commands.add_parser("orderings", help="say which published orderings hold")
    claims.add_argument("files", nargs="+")
    claims.set_defaults(act=orderings)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
