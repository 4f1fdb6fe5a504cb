"""Measure whether dropping nodes in the midst of the target's pass pays, and what it loses.

    python -m benchmarks.self_speculation.pruning            # measures, and appends what came of it
    python -m benchmarks.self_speculation.pruning --show     # the tables, in Markdown

Token recycling drafts its published tree of 80 nodes for SmolLM2-135M on prompts of Spec-Bench.
The pass stops after some layers and goes on with the nodes that are likely there, chosen by price
or by their chance alone; the control cuts as many nodes at random. Smaller trees of recycling stand
beside them. All arms write the same text, prompt by prompt in turns. Maps are fitted on as many
tokens on any machine, and sizes follow from one given curve. Intervals are 95 %, by bootstrap over
prompts.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.processes import CURVE, in_turns
from benchmarks.common.scripts import parser_of, print_tables
from draftwood.costs.budget import Budget
from draftwood.costs.curve import Curve
from draftwood.drafters import Drafter, DraftRequest, DraftSession
from draftwood.drafters.drafter import Reads, VerifiedTree
from draftwood.engine import Method
from draftwood.sampling import Context
from draftwood.stats import Step
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import Estimate, estimate, paired, pooled_ratio
from draftwood_bench.run.blank import blank
from draftwood_methods.drafters.pruned import Pruned
from draftwood_methods.drafters.token_recycling import TokenRecycling, published_tree
from draftwood_methods.exits import Exits

RECORDS = RESULTS / "pruning.jsonl"
NEW_TOKENS = 64
WHOLE = "whole tree"
Terms = Callable[[Record], tuple[float, float]]


@dataclass(frozen=True)
class Arm:
    """One way to run a tree of token recycling.

    Attributes:
        layer: before which nodes leave; None for a tree that stays whole.
        least: chance below which they do; None for the price.
        at_random: whether as many others leave.
        nodes: of the whole tree.
    """

    name: str
    layer: int | None = None
    least: float | None = None
    at_random: bool = False
    nodes: int = 80


def cut_arms(layer: int, least: float) -> tuple[Arm, ...]:
    """By price, by chance, and the control."""
    return (
        Arm(f"after {layer}, by price", layer),
        Arm(f"after {layer}, chance {least:g}", layer, least),
        Arm(f"after {layer}, as many at random", layer, least, at_random=True),
    )


LAYERS = (15, 20, 25)
ARMS = (
    Arm(WHOLE),
    *(arm for layer in LAYERS for arm in cut_arms(layer, 0.001)),
    *(Arm(f"{nodes} nodes", nodes=nodes) for nodes in (8, 16, 32)),
)


@dataclass(frozen=True, eq=False)
class Remembered(Drafter):
    """A drafter whose trees are remembered as they were proposed."""

    drafter: Drafter
    trees: list[DraftTree] = field(default_factory=list)
    name = "remembered"

    def start(self, request: DraftRequest) -> DraftSession:
        return RememberedSession(self.drafter.start(request), self.trees)


class RememberedSession(DraftSession):
    def __init__(self, inner: DraftSession, trees: list[DraftTree]) -> None:
        self.inner, self.trees = inner, trees

    @property
    def reads(self) -> Reads:
        return self.inner.reads

    def propose(self, root: int, context: Context) -> DraftTree:
        self.trees.append(self.inner.propose(root, context))
        return self.trees[-1]

    def update(self, verified: VerifiedTree) -> None:
        self.inner.update(verified)


@dataclass(frozen=True, eq=False)
class AtRandom(Pruned):
    """A control: as many nodes stay as would have, but any that make a tree."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def kept(
        self, tree: DraftTree, chances: Sequence[float], share: float, now: Context
    ) -> list[int]:
        count = len(super().kept(tree, chances, share, now))
        nodes, open_nodes = [0], list(tree.children[0])
        while len(nodes) < count:
            node = open_nodes.pop(self.chance.randrange(len(open_nodes)))
            nodes.append(node)
            open_nodes += tree.children[node]
        return sorted(nodes)


def method_of(arm: Arm, exits: Exits, trees: list[DraftTree]) -> Method:
    """The arm's method."""
    shape = replace(published_tree(), budget=arm.nodes)
    inner = Remembered(TokenRecycling(shape), trees)
    if arm.layer is None:
        return Method(inner, Match(), arm.name)
    kind = AtRandom if arm.at_random else Pruned
    drafter = kind(inner, arm.layer, exits, Budget.of(Curve(*CURVE)), arm.least)
    return Method(drafter, Match(), arm.name)


def matched(tree: DraftTree, text: Sequence[int]) -> int:
    """Nodes in a row below the root that are what the text says after it."""
    node = 0
    for count, token in enumerate(text):
        found = [child for child in tree.children[node] if tree.token_list[child] == token]
        if not found:
            return count
        node = found[0]
    return len(text)


def figures(steps: Sequence[Step], whole: Sequence[DraftTree]) -> dict[str, int]:
    """Rows and accepted tokens of a text's trees, as they were proposed and as they were run."""
    tokens = [token for step in steps for token in step.tokens]
    found = {"rows": 0, "left": 0, "offered": 0, "accepted": 0}
    place = len(steps[0].tokens)
    for step, tree in zip(steps[1:], whole, strict=True):
        assert step.tree is not None
        assert step.tree.token_list[0] == tokens[place - 1]
        rest = tokens[place:]
        found["rows"] += len(tree)
        found["left"] += len(step.tree)
        found["offered"] += matched(tree, rest)
        found["accepted"] += matched(step.tree, rest)
        place += len(step.tokens)
    return found


def measure(output: Path, per_category: int, rounds: int, temperatures: Sequence[float]) -> None:
    """Decode every prompt with every arm; what is there is not measured again."""
    import draftwood
    from draftwood_bench.plan.prompts import load_prompts

    lm = draftwood.load("smollm2-135m", method="plain")
    exits = Exits.of(lm.model, lm.prior.before, LAYERS)  # as long as it takes
    prompts = load_prompts("spec-bench", per_category=per_category).prompts
    known, arms = set(map(key, read(output))), {arm.name: arm for arm in ARMS}
    lm.generate("Warm up.", max_new_tokens=16)
    for turn in range(rounds):
        for number, prompt in enumerate(prompts):
            for temperature in temperatures:
                for name in in_turns(arms, turn + number):
                    record = {"name": name, "temperature": temperature, "prompt": prompt.id}
                    record |= {"round": turn, "category": prompt.category}
                    if key(record) in known:
                        continue
                    trees: list[DraftTree] = []
                    stream = lm.with_method(method_of(arms[name], exits, trees)).stream(
                        prompt.messages([]),
                        max_new_tokens=NEW_TOKENS,
                        temperature=temperature,
                        seed=number,
                        ignore_eos=True,
                    )
                    text = "".join(stream).encode()
                    stats, digest = stream.finish().stats, hashlib.sha256(text).hexdigest()[:12]
                    record |= {"layer": arms[name].layer, "layers": lm.model.layers}
                    record |= {"tokens": stats.tokens - 1, "runs": stats.target_runs}
                    record |= {**figures(stream.steps, trees), "text": digest}
                    append(output, record | {"seconds": round(stats.decode_seconds, 5)})


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("name", "temperature", "prompt", "round"))


def per_pass(record: Record) -> tuple[float, float]:
    return record.stats["tokens"], record.stats["runs"]


def lost(record: Record) -> tuple[float, float]:
    """Accepted tokens that the whole trees had more, of theirs."""
    stats = record.stats
    return stats["offered"] - stats["accepted"], max(stats["offered"], 1e-9)


def saved(record: Record) -> tuple[float, float]:
    """Rows that no layer had to run, by layers."""
    stats = record.stats
    layers = stats["layers"] - (stats["layers"] if stats["layer"] is None else stats["layer"])
    return (stats["rows"] - stats["left"]) * layers, stats["rows"] * stats["layers"]


def speed(record: Record) -> tuple[float, float]:
    return record.stats["tokens"], record.stats["seconds"]


def tables(output: Path) -> Iterator[tuple[float, list[dict[str, str]]]]:
    """By temperature a row for each arm."""
    groups: dict[float, dict[str, list[Record]]] = {}
    for each in read(output):
        fields = {name: each[name] for name in ("temperature", "prompt", "round", "category")}
        record = blank(each["name"], stats=dict(each), **fields)
        groups.setdefault(each["temperature"], {}).setdefault(each["name"], []).append(record)
    for temperature, arms in sorted(groups.items()):
        whole, rows = arms[WHOLE], []
        texts = {record.stats["prompt"]: record.stats["text"] for record in whole}
        for name in (arm.name for arm in ARMS if arm.name in arms):
            records = arms[name]
            pairs = paired(records, whole)
            rows.append(
                {
                    "tree": name,
                    "tokens per pass": str(estimate(records, per_pass)),
                    "beside the whole": _beside(pairs, per_pass, name),
                    "nodes left": f"{_mean(records, 'left') - 1:.1f}",
                    "accepted tokens lost": _percent(estimate(records, lost)),
                    "node-layers saved": _percent(estimate(records, saved)),
                    "tokens/s beside the whole": _beside(pairs, speed, name),
                    "same texts": f"{_same(records, texts)} of {len(records)}",
                }
            )
        yield temperature, rows


def _beside(pairs: Any, terms: Terms, name: str) -> str:
    return "" if name == WHOLE else str(pooled_ratio(pairs, terms))


def _mean(records: Sequence[Record], name: str) -> float:
    return sum(each.stats[name] for each in records) / sum(each.stats["runs"] for each in records)


def _same(records: Sequence[Record], texts: Mapping[str, str]) -> int:
    return sum(each.stats["text"] == texts.get(each.prompt) for each in records)


def _percent(found: Estimate | None) -> str:
    assert found is not None
    return found.written(".1%")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--show", action="store_true", help="print what was measured")
    parser.add_argument("--output", type=Path, default=RECORDS)
    parser.add_argument("--per-category", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--temperature", default="0,1")
    given = parser.parse_args()
    if not given.show:
        temperatures = [float(each) for each in given.temperature.split(",")]
        measure(given.output, given.per_category, given.rounds, temperatures)
    print_tables((f"### T = {heat:g}", rows) for heat, rows in tables(given.output))


if __name__ == "__main__":
    main()
