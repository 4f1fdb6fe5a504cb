"""Time per step outside the forward passes.

That is drafting, probabilities, verdict, cache and learning. A prepared model is a stand-in that
answers at once, so that what is timed is Python's steps. Native steps are a user's: whole ones, of
a model that has the sizes of SmolLM2-135M and random weights, less what the library's clocks say of
passes, draft models and heads.
"""

import time
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any, cast

import torch

from draftwood import engine, methods
from draftwood.engine import Options, run_all
from draftwood.models.model import ModelOutput, ModelSession
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.stats import Step
from draftwood.testing.heads import tiny_eagle
from draftwood.tree import DraftTree
from draftwood_bench.plan.measurements import Overhead, OverheadCase, OverheadPart
from draftwood_bench.records.files import Record
from draftwood_bench.run.blank import blank

PROMPT_TOKENS = 512
AGREEMENT = 12.0
LONGEST = 10  # tokens that a step may write
ROW_SECONDS = 0.05  # of native steps in a row, as of texts that are told as a whole
WINDOW = 24  # native steps, at least, whose mean counts once, as the library makes them in rows
LAYERS = 30
SPREAD, DISAGREEMENT = 4.0, 0.25  # of logits, and the draft model's own part of them
DRAFTED = 8192  # tokens of the head's vocabulary
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

    def forward(self, inputs: Sequence[engine.ModelInput]) -> list[ModelOutput]:
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
        self,
        tokens: Sequence[int],
        keep: str = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
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


class PreparedPair:
    """A target and a draft model that answer at once; no head."""

    head = None

    def __init__(self, vocab: int, steps: int) -> None:
        self.target, self.draft = PreparedModel(vocab), PreparedModel(vocab)

    def outside(self, step: Step, seconds: float) -> float:
        """Seconds of a step's phases but the target's, without those of the draft model."""
        drafting, self.draft.seconds = self.draft.seconds, 0.0
        return step.seconds["draft"] + step.seconds["verify"] - drafting


class NativeModels:
    """A target, a draft model and an EAGLE head that the library runs, of random weights.

    The draft model holds nearly the same tokens likely, so that drafts get accepted.
    """

    def __init__(self, vocab: int, steps: int) -> None:
        places = PROMPT_TOKENS + (LONGEST + 1) * steps
        target, draft = (_random_llama(vocab, layers, places) for layers in (LAYERS, 2))
        with torch.no_grad():
            draft.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
            draft.lm_head.weight.mul_(DISAGREEMENT).add_(target.lm_head.weight)
        self.target, self.draft = NativeModel(target, "int8"), NativeModel(draft, "int8")
        self.head = tiny_eagle(self.target, range(0, vocab, max(vocab // DRAFTED, 1)))

    def outside(self, step: Step, seconds: float) -> float:
        """Seconds of a step without those of passes, see ``whole_rows``."""
        return seconds - step.seconds["target"] - step.drafter_seconds


def whole_rows(outside: Sequence[float], least: int) -> list[float]:
    """Mean seconds per step outside passes, of whole rows with so many steps at least.

    The first step of a row has the seconds of the whole row, so those behind it, which have their
    passes alone, are below zero; a window that cut a row would count its passes too.

    Args:
        outside: by step; what follows the last whole rows does not count, unless it is all.
        least: steps of a mean.
    """
    means: list[float] = []
    begun = 0
    for step, seconds in enumerate(outside):
        if seconds > 0 and step - begun >= least:
            means.append(fmean(outside[begun:step]))
            begun = step
    return means or [fmean(outside)]


def _random_llama(vocab: int, layers: int, places: int) -> Any:
    """A model whose layers change little: its next token depends on the newest, and is likely."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=places,
        initializer_range=0.004,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(layers)
        model = LlamaForCausalLM(config).eval()
        model.model.embed_tokens.weight.normal_()
        model.lm_head.weight.normal_(std=SPREAD / 24)  # of logits; 24 is the root of 576
    return model


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
            temperature=case.temperature,
            prompt_tokens=PROMPT_TOKENS,
        )
        for case in asked.cases()
        for cell in [case.cell]
    ]


class OverheadBench:
    """Times methods on models that are made when they are first needed."""

    def __init__(self, asked: Overhead) -> None:
        self.asked = asked
        self._models: dict[tuple[str, int], Any] = {}

    def models(self, part: OverheadPart, vocab: int) -> Any:
        """The target and what drafts; those of another part or vocabulary are forgotten."""
        key = part, vocab
        if key not in self._models:
            self._models = {}
            made = PreparedPair if part == "prepared" else NativeModels
            self._models[key] = made(vocab, self.asked.steps)
        return self._models[key]

    def measure(self, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Medians per step: milliseconds outside forward passes, and drafted tokens; of native
        steps also milliseconds in passes of what drafts.
        """
        cases = {(case.cell.key, case.temperature): case for case in self.asked.cases()}
        return [self._measure(cases[record.cell, record.temperature]) for record in wanted]

    def _measure(self, case: OverheadCase) -> dict[str, Any]:
        models = self.models(case.part, case.vocab)
        steps = list(self._steps(case, models))
        window = WINDOW if case.part == "native" else 1
        per_step = whole_rows([seconds for seconds, _ in steps], window)
        found = {
            "milliseconds": round(median(per_step) * 1e3, 3),
            "nodes": median(step.drafted for _, step in steps),
        }
        if case.part == "native":
            found["drafter"] = round(median(step.drafter_seconds for _, step in steps) * 1e3, 3)
        return found

    def _steps(self, case: OverheadCase, models: Any) -> Iterator[tuple[float, Step]]:
        """Steps behind the prompt's, each with its seconds outside passes."""
        needs = case.cell.drafts_with.needs
        draft = models.draft if "draft-model" in needs else None
        head = models.head if "head" in needs else None
        method = methods.build(case.cell.varied, models.target, draft, head=head)
        most = LONGEST * self.asked.steps
        options = Options(Sampling(case.temperature), most, seed=0)
        prompt = [number % case.vocab for number in range(PROMPT_TOKENS)]
        left, since = self.asked.steps, time.perf_counter()
        text = engine.Sequence(models.target, method.drafter, method.verifier, prompt, options)
        text.tell_within = ROW_SECONDS
        for _, step in run_all([text]):
            outside = models.outside(step, time.perf_counter() - since)
            if not step.is_prefill:
                yield outside, step
                left -= 1
            if not left:
                return
            since = time.perf_counter()
