"""Time per step outside the forward passes.

That is drafting, probabilities, verdict, cache and learning. The model is a stand-in that answers
at once from prepared logits, so what is timed is the library.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, cast

import torch

from draftwood import methods
from draftwood.engine import ModelInput, Options, generate
from draftwood.models.model import ModelOutput, ModelSession
from draftwood.sampling import Sampling
from draftwood.tree import DraftTree
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.plan.measurements import Overhead
from draftwood_bench.records.files import Record
from draftwood_bench.run.blank import blank

PROMPT_TOKENS = 512
AGREEMENT = 12.0
DISTRIBUTIONS, ENTRIES = 2048, 2048 * 49152  # rows of a model, and most numbers of all of them


class PreparedModel:
    """A model whose answers lie ready; it notes how long it was asked for them.

    Args:
        vocab: number of tokens.
    """

    def __init__(self, vocab: int) -> None:
        rng = torch.Generator().manual_seed(0)
        rows = min(DISTRIBUTIONS, ENTRIES // vocab)
        self.logits = torch.randn(rows, vocab, generator=rng) * 1.5
        # the likeliest tokens are the same everywhere, so that drafts get accepted
        self.logits[:, :40] += AGREEMENT
        self.vocab_size, self.context_length, self.layers = vocab, None, 0
        self.end_tokens: frozenset[int] = frozenset()
        self.device = torch.device("cpu")
        self.abilities: Any = frozenset({"fork"})
        self.hidden_size, self.embeddings_and_head = 0, cast(Any, None)
        self.seconds = 0.0

    def start(self) -> "PreparedSession":
        return PreparedSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        return [each.alone() for each in inputs]

    def answer(self, tokens: torch.Tensor, since: float) -> ModelOutput:
        """Logits of shape (tokens, vocab) in float32, as ``NativeModel`` gives them.

        Args:
            tokens: that are run.
            since: the moment at which the pass began.
        """
        output = ModelOutput(self.logits[tokens % len(self.logits)])
        self.seconds += time.perf_counter() - since
        return output


class PreparedSession:
    """A sequence of which only the length is known."""

    def __init__(self, model: PreparedModel) -> None:
        self.model, self.length = model, 0

    def extend(
        self, tokens: Sequence[int], keep: str = "all", hidden: Sequence[int] = ()
    ) -> ModelOutput:
        since = time.perf_counter()
        self.length += len(tokens)
        wanted = len(tokens) if keep == "all" else int(keep == "last")
        return self.model.answer(torch.tensor(tokens[len(tokens) - wanted :]), since)

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        since = time.perf_counter()
        return self.model.answer(torch.from_numpy(tree.tokens[first:]), since)

    def commit(self, path: Sequence[int]) -> None:
        self.length += len(path)

    def rewind(self, count: int) -> None:
        self.length -= count

    def fork(
        self, into: ModelSession | None = None, length: int | None = None
    ) -> "PreparedSession":
        fork = into if isinstance(into, PreparedSession) else PreparedSession(self.model)
        fork.length = self.length if length is None else length
        return fork

    def wants(self, count: int) -> int:
        return 0

    def clear(self) -> None:
        self.length = 0

    def close(self) -> None:
        """Nothing is held."""


def records(asked: Overhead) -> list[Record]:
    """One for each method, temperature and vocabulary, without stats."""
    return [
        blank(
            cell.method,
            cell.at,
            shape=None if cell.tree is None else repr(cell.tree),
            nodes=None if cell.tree is None else cell.tree.nodes,
            verifier=cell.rule.name,
            drafter=cell.drafts_with.name,
            cell=cell.key,
            temperature=temperature,
            prompt_tokens=PROMPT_TOKENS,
        )
        for cell, temperature, _ in asked.cases()
    ]


class OverheadBench:
    """Times methods on prepared models, which are made when they are first needed."""

    def __init__(self, asked: Overhead) -> None:
        self.asked = asked
        self._models: dict[int, tuple[PreparedModel, PreparedModel]] = {}

    def models(self, vocab: int) -> tuple[PreparedModel, PreparedModel]:
        """The target and the draft model; those of another vocabulary are forgotten."""
        if vocab not in self._models:
            self._models = {}
            self._models[vocab] = PreparedModel(vocab), PreparedModel(vocab)
        return self._models[vocab]

    def measure(self, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Median milliseconds per step outside forward passes, and median drafted tokens."""
        cells = {cell.key: (cell, vocab) for cell, _, vocab in self.asked.cases()}
        return [self._measure(*cells[record.cell], record.temperature) for record in wanted]

    def _measure(self, cell: Configuration, vocab: int, temperature: float) -> dict[str, Any]:
        target, draft = self.models(vocab)
        needs = "draft-model" in cell.drafts_with.needs
        method = methods.build(cell.varied, target, draft if needs else None)
        options = Options(Sampling(temperature), 100_000, seed=0)
        times, nodes = [], []
        prompt = list(range(PROMPT_TOKENS))
        for step in generate(target, method.drafter, method.verifier, prompt, options):
            spent = step.seconds["draft"] + step.seconds["verify"] - draft.seconds
            draft.seconds = 0.0
            if not step.is_prefill:
                times.append(spent * 1e3)
                nodes.append(step.drafted)
            if len(times) >= self.asked.steps:
                break
        return {"milliseconds": round(median(times), 3), "nodes": median(nodes)}
