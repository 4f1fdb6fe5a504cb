"""Time per step outside model runs: proposing, probabilities, verdict, cache bookkeeping and
learning.

    make bench-overhead

The model is a stand-in that answers at once from prepared logits of a 49k vocabulary, so what is
timed is the library.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from data import markdown
from draftwood.drafters import Drafter, DraftModel, PromptLookup, TokenRecycling
from draftwood.drafters.token_recycling import published_tree
from draftwood.engine import Options, generate
from draftwood.interfaces.model import Ability, ForwardInput, Keep, Output, WithoutEnds
from draftwood.sampling import Sampling
from draftwood.shapes import StochasticBeam, Widths
from draftwood.tree import DraftTree
from draftwood.verifiers import KSeq, Match, Rejection, Traversal, Verifier


class Prepared:
    """A model whose answers lie ready; it notes how long it was asked for them."""

    def __init__(self, vocab: int, agreement: float) -> None:
        rng = torch.Generator().manual_seed(0)
        # agreement: how much of the likeliest token's weight is the same everywhere, so that drafts
        # get accepted
        self.logits = torch.randn(2048, vocab, generator=rng) * 1.5
        self.logits[:, :40] += agreement
        self.vocab_size, self.context_length, self.layers = vocab, None, 0
        self.end_tokens: frozenset[int] = frozenset()
        self.device = torch.device("cpu")
        self.abilities: frozenset[Ability] = frozenset({"fork"})
        self.hidden_size, self.ends = 0, WithoutEnds(self)
        self.seconds = 0.0

    def start(self) -> "PreparedSession":
        return PreparedSession(self)

    def forward(self, runs: Sequence[ForwardInput]) -> list[Output]:
        return [run.session.forward(run.tree, run.first) for run in runs]

    def answer(self, tokens: torch.Tensor) -> Output:
        since = time.perf_counter()
        # float32, as NativeModel gives them
        output = Output(self.logits[tokens % len(self.logits)])
        self.seconds += time.perf_counter() - since
        return output


class PreparedSession:
    def __init__(self, model: Prepared) -> None:
        self.model, self.length = model, 0

    def extend(
        self, tokens: Sequence[int], keep: Keep = "all", hidden: Sequence[int] = ()
    ) -> Output:
        self.length += len(tokens)
        return self.model.answer(torch.tensor(tokens if keep == "all" else tokens[-1:]))

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> Output:
        return self.model.answer(tree.tokens[first:])

    def commit(self, path: Sequence[int]) -> None:
        self.length += len(path)

    def rewind(self, count: int) -> None:
        self.length -= count

    def fork(self) -> "PreparedSession":
        fork = PreparedSession(self.model)
        fork.length = self.length
        return fork

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Case:
    name: str
    drafter: Drafter
    verifier: Verifier
    temperature: float


def cases(draft: Prepared) -> list[Case]:
    tree = TokenRecycling(replace(published_tree(), budget=64))
    beam, widths = DraftModel(draft, StochasticBeam(8, 8)), DraftModel(draft, Widths((4, 3, 2, 1)))
    return [
        Case("recycling, 64 nodes, greedy", tree, Match(), 0.0),
        Case("recycling, 64 nodes, sampled", tree, Match(), 1.0),
        Case("prompt lookup, chain of 8, sampled", PromptLookup(), Match(), 1.0),
        Case("rsd-s, 8 x 8 nodes, greedy", beam, Rejection(), 0.0),
        Case("rsd-s, 8 x 8 nodes, sampled", beam, Rejection(), 1.0),
        Case("rsd-c, (4,3,2,1) = 64 nodes, sampled", widths, Rejection(), 1.0),
        Case("rsd-c, (4,3,2,1), traversal, sampled", widths, Traversal(), 1.0),
        Case("spectr, (8,1,..) = 64 nodes, sampled", DraftModel(draft, _chains()), KSeq(), 1.0),
    ]


def _chains() -> Widths:
    return Widths((8,) + (1,) * 7, "independent")


def run(arguments: argparse.Namespace) -> None:
    target, draft = Prepared(arguments.vocab, 12.0), Prepared(arguments.vocab, 12.0)
    found = {}
    for case in cases(draft):
        options = Options(Sampling(case.temperature), 100_000, seed=0)
        times, nodes = [], []
        for step in generate(target, case.drafter, case.verifier, list(range(512)), options):
            spent = step.seconds["draft"] + step.seconds["verify"] - draft.seconds
            draft.seconds = 0.0
            if not step.is_prefill:
                times.append(spent * 1e3)
                nodes.append(step.drafted)
            if len(times) >= arguments.steps:
                break
        found[case.name] = {"milliseconds": round(median(times), 3), "nodes": median(nodes)}
    record = {
        "vocab": arguments.vocab,
        "threads": torch.get_num_threads(),
        "steps": arguments.steps,
        "cases": found,
    }
    print(table(record))
    print(json.dumps(record))
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")


def table(record: dict) -> str:
    rows = [
        [name, f"{case['nodes']:.0f}", f"{case['milliseconds']:.2f}"]
        for name, case in record["cases"].items()
    ]
    head = (
        f"Median of {record['steps']} steps, vocabulary {record['vocab']}, threads:"
        f" {record['threads']}.\n\n"
    )
    return head + markdown(["case", "draft tokens", "ms per step outside model runs"], rows)


def report(arguments: argparse.Namespace) -> None:
    print(table(json.loads(Path(arguments.file).read_text())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure")
    runs.add_argument("--vocab", type=int, default=49152)
    runs.add_argument("--steps", type=int, default=60)
    runs.add_argument("--output", help="a JSON file to keep the numbers in")
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table of a file")
    reports.add_argument("file")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
