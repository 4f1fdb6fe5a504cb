"""Drafters of a small model replayed on greedy texts that a larger one wrote, counted.

The texts are stored, so that the larger model writes them once. A model that says them again token
by token stands in for it, and every drafter drafts what it would draft beside the model itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import draftwood
from benchmarks.common.curves import WEIGHT_BYTES, stored
from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.self_speculation.paired_counts import (
    FOLDER,
    Records,
    Row,
    Side,
    Table,
    best,
    figure,
    held_out,
    numbers_of,
    over,
    side,
)
from draftwood.drafters import Drafter, DraftModel, PromptLookup
from draftwood.engine import Options, generate
from draftwood.models.model import Keep, ModelOutput
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.stats import Stats
from draftwood.testing.models import TableModel, TableSession
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_bench.plan.prompts import load_prompts
from draftwood_methods.drafters.cascade import Cascade
from draftwood_methods.drafters.merged import MergedDrafters
from draftwood_methods.shapes import Until
from draftwood_methods.shapes.merged_graph import MergedGraph

TARGET, SMALL = "tinyllama-1.1b", "stories-15m"
TEXTS = FOLDER / "texts.jsonl"
STORIES, NEW_TOKENS, LONGEST = 12, 64, 900
SURE = 60.0  # logit of the token that a recorded text goes on with


@dataclass(frozen=True, eq=False)
class Recorded:
    """A prompt and what the larger model wrote behind it."""

    name: str
    prompt: list[int]
    answer: list[int]


def recorded() -> list[Recorded]:
    """The texts: beginnings of stories, written now, and Spec-Bench as another benchmark ran it."""
    if not TEXTS.is_file():
        target = draftwood.load(TARGET, method="plain")
        stories = load_prompts("stories", limit=STORIES).prompts
        prompts = [target.encode(each.turns[0], raw=True)[: each.first_tokens] for each in stories]
        answers = target.generate(prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        for each, prompt, answer in zip(stories, prompts, answers, strict=True):
            _store(each.id, prompt, answer.token_ids)
        known = {prompt.id: prompt for prompt in load_prompts("spec-bench").prompts}
        for row in read(RESULTS / "tinyllama" / "records.jsonl"):
            if (row["method"], row["temperature"], row["turn"]) == ("plain", 0.0, 0):
                prompt = target.encode(known[row["prompt"]].messages([]))
                if len(prompt) == row["prompt_tokens"] < LONGEST:
                    _store(f"spec-bench {row['prompt']}", prompt, row["token_ids"])
    return [Recorded(row["name"], row["prompt"], row["answer"]) for row in read(TEXTS)]


def _store(name: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
    append(TEXTS, {"name": name, "prompt": list(prompt), "answer": list(answer)})


@dataclass(frozen=True, eq=False)
class TextModel(TableModel):
    """A model that goes on with one text wherever it stands on it, and else with token 0."""

    text: tuple[int, ...] = ()

    def start(self) -> "TextSession":
        return TextSession(self)


class TextSession(TableSession):
    """One sequence on a TextModel."""

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        first = len(self.tokens) + 1
        self.tokens, self.run = [*self.tokens, *tokens], []
        ends = range(first, len(self.tokens) + 1)
        wanted = {"all": ends, "last": ends[-1:], "none": ends[:0]}[keep]
        return ModelOutput(self._rows([self.tokens[:end] for end in wanted]))

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        self.run = list(zip(tree.token_list, tree.parent_list, strict=True))
        paths = [[0, *tree.path_to(node)] for node in range(first, len(tree))]
        texts = [[*self.tokens, *(tree.token_list[node] for node in path)] for path in paths]
        return ModelOutput(self._rows(texts))

    def _rows(self, texts: Sequence[Sequence[int]]) -> Tensor:
        assert isinstance(self.model, TextModel)
        own, rows = self.model.text, torch.zeros(len(texts), self.model.vocab_size)
        for row, text in zip(rows, texts, strict=True):
            here = len(text) < len(own) and tuple(text) == own[: len(text)]
            row[own[len(text)] if here else 0] = SURE
        return rows


class PassCount:
    """Passes of a small model since it was asked last, and nodes that they gave rows for."""

    def __init__(self, model: NativeModel) -> None:
        self.passes = self.rows = 0
        self.start = model.start
        model.start = self._started  # type: ignore[method-assign]

    def _started(self) -> Any:
        session = self.start()
        forward, extend = session.forward, session.extend

        def counted_forward(
            tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()
        ) -> ModelOutput:
            self.passes, self.rows = self.passes + 1, self.rows + len(tree) - first
            return forward(tree, first, hidden)

        def counted_extend(
            tokens: Sequence[int], keep: Keep = "all", hidden: Sequence[int] = ()
        ) -> ModelOutput:
            self.passes, self.rows = self.passes + 1, self.rows + 1
            return extend(tokens, keep, hidden)

        session.forward, session.extend = counted_forward, counted_extend  # type: ignore[method-assign]
        return session

    def __call__(self) -> Mapping[str, int]:
        found = {"draft_passes": self.passes, "draft_rows": self.rows}
        self.passes = self.rows = 0
        return found


@dataclass(frozen=True)
class Unrelated(MergedGraph):
    """A control: nodes share where a number made of their whole text agrees, which says nothing of
    what follows.
    """

    name: ClassVar[str] = "unrelated"
    groups: int = 8

    def ending(self, path: Sequence[int]) -> tuple[int, ...] | None:
        return None if len(path) < 2 else (hash(tuple(path)) % self.groups,)


GRAPHS = ((4, 4, 12), (6, 6, 24))  # levels, width, draft tokens
FIXED = (1, 2, 3, 4, 6, 8)
THRESHOLDS = (0.2, 0.3, 0.4, 0.6)


def drafters(small: NativeModel) -> dict[str, Drafter]:
    """Every arm by name; those of one question begin alike."""
    found: dict[str, Drafter] = {}
    for depth, width, size in GRAPHS:
        sizes = f"graph {depth}x{width}"
        found[f"{sizes}, no sharing"] = DraftModel(small, BestFirst(depth, width, size))
        for agreeing in (1, 2):
            shape = MergedGraph(depth, width, size, agreeing)
            found[f"{sizes}, newest {agreeing} agree"] = DraftModel(small, shape)
        for groups in (8, 24):
            shape = Unrelated(depth, width, size, 1, groups)
            found[f"{sizes}, unrelated nodes, {groups} groups"] = DraftModel(small, shape)
        for less in (width - 1, width - 2):
            narrow = BestFirst(depth, less, size)
            found[f"{sizes}, no sharing, width {less}"] = DraftModel(small, narrow)
    for length in FIXED:
        found[f"fixed {length}"] = DraftModel(small, Widths((1,) * length))
    for estimate in ("entropy", "probability"):
        for threshold in THRESHOLDS:
            shape = Until(8, threshold, estimate)
            found[f"until {threshold} by {estimate}"] = DraftModel(small, shape)
    for length in (4, 8):
        found[f"staged {length}, no tables"] = Cascade(small, length, ahead=0)
        found[f"staged {length}, tables"] = Cascade(small, length)
    return found | mixed(small)


def mixed(small: NativeModel) -> dict[str, Drafter]:
    """Six draft tokens of one drafter, or three each of two."""
    model, copies = DraftModel(small, BestFirst(2, 3, 3)), PromptLookup(3, 3)
    return {
        MODEL: DraftModel(small, BestFirst(3, 3, 6)),
        COPIES: PromptLookup(3, 6),
        TWO_COPIES: PromptLookup(3, 3, 2),
        MERGED: MergedDrafters((model, copies)),
    }


MODEL, COPIES, TWO_COPIES = "six of the draft model", "six copied", "three copied from two places"
MERGED = "three of each in one tree"


def run(records: Records) -> None:
    loaded = draftwood.load(SMALL, method="plain").model
    assert isinstance(loaded, NativeModel)
    count, logits = PassCount(loaded), torch.zeros(1, loaded.vocab_size)
    texts = recorded()
    for name, drafter in drafters(loaded).items():
        for each in texts:
            wanted = name in (MODEL, COPIES, TWO_COPIES, MERGED) or each.name.startswith("story")
            if not wanted or records.has(name, each.name):
                continue
            count()
            target = TextModel(logits, (*each.prompt, *each.answer))
            options = Options(Sampling(), len(each.answer), seed=0)
            steps = list(generate(target, drafter, Match(), each.prompt, options))
            written = [token for step in steps for token in step.tokens]
            sizes = np.bincount([step.drafted for step in steps if not step.is_prefill])
            numbers = {**numbers_of(Stats.of(steps), written), **count()}
            numbers |= {"by_size": sizes.tolist(), "bytes": loaded.weight_bytes}
            records.add(name, each.name, **numbers)
        print("merged", name, flush=True)


@cache
def node_costs() -> tuple[np.ndarray, np.ndarray, float]:
    """Nodes, what a pass over so many takes in plain passes, and bytes of the larger model."""
    curve = stored("cost")[TARGET]
    times = np.array(list(curve.values()))
    return np.array(list(curve)), times / times[0], float(WEIGHT_BYTES[TARGET])


def plain_passes(row: Row) -> float:
    """Plain passes that take as long as a text's: the target's by their nodes, the draft model's by
    the bytes that they read.
    """
    nodes, costs, whole = node_costs()
    sizes = np.arange(len(row["by_size"]))
    own = np.dot(np.interp(1 + sizes, nodes, costs), row["by_size"])
    return float(own + row["draft_passes"] * row["bytes"] / whole)


def of_stories(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["prompt"].startswith("story")]


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    told = of_stories(rows)
    yield "Stories: nodes that end alike share an expansion", graph_rows(told)
    yield "Stories: speed by price, plain decoding has 1", until_rows(told)
    yield "Stories: n-gram tables below the draft model", staged_rows(told)
    yield "Six draft tokens of one drafter, or three each of two", mixed_rows(rows)


def graph_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for depth, width, _ in GRAPHS:
        start = f"graph {depth}x{width}, "
        arms = dict.fromkeys(row["arm"] for row in rows if row["arm"].startswith(start))
        base = f"{start}no sharing"
        for arm in arms:
            tokens, nodes = (
                [side(rows, name, what, "passes") for name in (arm, base)]
                for what in ("tokens", "draft_rows")
            )
            lines.append(
                {
                    "levels x width": start.split()[1].strip(","),
                    "sharing": arm.removeprefix(start),
                    "tokens per pass": str(figure(tokens[0])),
                    "over no sharing": "" if arm == base else str(over(*tokens)),
                    "draft rows per pass": str(figure(nodes[0])),
                    "rows over no sharing": "" if arm == base else str(over(*nodes)),
                }
            )
    return lines


def until_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    def sides(*starts: str) -> dict[str, Side]:
        arms = dict.fromkeys(row["arm"] for row in rows if row["arm"].startswith(starts))
        return {arm: side(rows, arm, "tokens", plain_passes) for arm in arms}

    fixed = sides("fixed")
    lines = [
        {"length": name.replace("fixed", "always"), **priced(own)} for name, own in fixed.items()
    ]
    for estimate in ("entropy", "probability"):
        own = {name: each for name, each in sides("until").items() if name.endswith(estimate)}
        if not own:
            continue
        first = best(own)
        lines += [
            {"length": f"{first}, the best of {len(own)} on these texts", **priced(own[first])},
            {
                "length": f"until by {estimate}, chosen on other texts",
                **priced(held_out(list(own.values()))),
                "over the best fixed length, likewise": str(
                    over(held_out(list(own.values())), held_out(list(fixed.values())))
                ),
            },
        ]
    heads = list(lines[-1]) if lines else []
    return [{head: line.get(head, "") for head in heads} for line in lines]


def priced(own: Side) -> dict[str, str]:
    return {"speed": str(figure(own))}


def staged_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for length in (4, 8):
        base = f"fixed {length}"
        for arm in (base, f"staged {length}, no tables", f"staged {length}, tables"):
            passes = [side(rows, name, "draft_passes", "passes") for name in (arm, base)]
            lines.append(
                {
                    "draft tokens": str(length),
                    "below the draft model": "nothing" if arm == base else arm.split(", ")[1],
                    "tokens per pass": str(figure(side(rows, arm, "tokens", "passes"))),
                    "draft passes per pass": str(figure(passes[0])),
                    "over nothing": "" if arm == base else str(over(*passes)),
                }
            )
    return lines


def mixed_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    lines = []
    for kind in ("story", "spec-bench"):
        own = [row for row in rows if row["prompt"].startswith(kind)]
        merged = side(own, MERGED, "tokens", "passes")
        for arm in (MODEL, COPIES, TWO_COPIES, MERGED):
            alone = side(own, arm, "tokens", "passes")
            lines.append(
                {
                    "texts": {"story": "stories"}.get(kind, "Spec-Bench"),
                    "drafts": arm,
                    "tokens per pass": str(figure(alone)),
                    "draft tokens per pass": str(figure(side(own, arm, "drafted", "passes"))),
                    "merged over it": "" if arm == MERGED else str(over(merged, alone)),
                }
            )
    return lines
