"""Texts that a second model drafts share its passes, and are the same as alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from draftwood import engine, methods
from draftwood.drafters import DraftModel, draft_model
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Limits, Options, ParallelSampling, Scheduler
from draftwood.methods import Method
from draftwood.models.cached import CachedModel
from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import ModelOutput
from draftwood.models.native import NativeModel
from draftwood.models.parts import PackedInput
from draftwood.models.requirements import require_mtp_head
from draftwood.models.shared import SharedPasses, shared_passes
from draftwood.sampling import Context, Sampling
from draftwood.stats import Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.lean.model import LeanModel

pytest.importorskip("greenlet")

TARGET = NativeModel(tiny_llama())
METHODS = ["rsd-s", "rsd-c", "spectr", "eagle-2-tree"]
TOKENS = 8


class BrokenError(Exception):
    """Error that tests raise."""


@dataclass(frozen=True)
class Breaking(Drafter):
    """Another drafter that fails once it has drafted its third tree, on some prompts."""

    name: ClassVar[str] = "breaking"
    inner: Drafter
    on: Sequence[int]

    @property
    def draws(self):  # type: ignore[no-untyped-def]
        return self.inner.draws

    def start(self, request: DraftRequest) -> DraftSession:
        return _BreakingSession(self, self.inner.start(request))


class _BreakingSession(DraftSession):
    def __init__(self, config: Breaking, inner: DraftSession) -> None:
        self.on, self.inner = config.on, inner
        self.trees, self.first = 0, -1

    def propose(self, root: int, context: Context) -> DraftTree:
        tree = self.inner.propose(root, context)
        self.trees += 1
        if self.trees == 3 and list(context.tokens[: len(self.on)]) == list(self.on):
            raise BrokenError
        return tree

    def update(self, verified: VerifiedTree) -> None:
        self.inner.update(verified)


class Passes:
    """Counts passes of a model."""

    def __init__(self, model: CachedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, run = 0, model.run

        def counted(parts: Sequence[PackedInput]) -> list[ModelOutput]:
            self.count += 1
            return run(parts)

        monkeypatch.setattr(model, "run", counted)


@pytest.fixture
def draft() -> Iterator[NativeModel]:
    model = NativeModel(tiny_llama(1, layers=1))
    yield model
    assert not model.pool.used
    assert not TARGET.pool.used


def prompt(number: int) -> list[int]:
    return [1 + number, *range(2, 4 + number)]


def sequence(method: Method, number: int, temperature: float) -> engine.Sequence:
    options = Options(Sampling(temperature), TOKENS, seed=number)
    return engine.Sequence(TARGET, method.drafter, method.verifier, prompt(number), options)


def run(
    sequences: Sequence[engine.Sequence], passes: Passes
) -> tuple[list[list[Step]], list[int], list[Exception]]:
    """The steps of each, the passes of the draft model in each step, and what failed."""
    batch = Scheduler(Limits(requests=len(sequences)))
    for each in sequences:
        batch.add(each)
    texts: list[list[Step]] = [[] for _ in sequences]
    counts, failed = [], []
    while batch:
        before = passes.count
        for event in batch.step():
            if event.error is not None:
                failed.append(event.error)
            elif event.progress is not None:
                texts[event.number].append(event.progress)
        counts.append(passes.count - before)
    return texts, counts, failed


def same(one: Step, other: Step) -> bool:
    if one.tree is None or other.tree is None:
        return one.tokens == other.tokens and one.tree is other.tree
    probs = [step.tree.probs for step in (one, other) if step.tree is not None]
    if probs[0] is not None and probs[1] is not None and not np.array_equal(probs[0], probs[1]):
        return False
    return (one.tokens, one.tree.token_list, one.tree.parent_list) == (
        other.tokens,
        other.tree.token_list,
        other.tree.parent_list,
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("requests", [1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", METHODS)
def test_texts_are_those_of_one_at_a_time_with_one_pass_per_level(
    name: str,
    temperature: float,
    requests: int,
    draft: NativeModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One fails in its midst; without the wrapper each runs a pass per level for itself."""
    passes = Passes(draft, monkeypatch)

    def texts(wrap: Callable[[NativeModel], NativeModel], numbers: Sequence[int]):  # type: ignore[no-untyped-def]
        method = methods.build(name, TARGET, wrap(draft))
        method = replace(method, drafter=Breaking(method.drafter, prompt(2)))
        return run([sequence(method, number, temperature) for number in numbers], passes)

    alone = [texts(lambda model: model, [number]) for number in range(requests)]
    steps = max(len(counts) for _, counts, _ in alone)
    levels = [[*counts, *([0] * (steps - len(counts)))] for _, counts, _ in alone]
    for wrap in (shared_passes, lambda model: model):
        found, counts, failed = texts(wrap, range(requests))  # type: ignore[arg-type]
        for (wanted,), text in zip((each for each, _, _ in alone), found, strict=True):
            assert len(text) == len(wanted)
            assert all(map(same, text, wanted))
        assert [type(error) for error in failed] == [BrokenError] * (requests > 2)
        if wrap is shared_passes:
            assert counts == [max(each) for each in zip(*levels, strict=True)]
        else:
            assert counts == [sum(each) for each in zip(*levels, strict=True)]
    assert sum(max(each) for each in zip(*levels, strict=True)) > 2 * TOKENS / 5
    assert (sum(map(sum, levels)) > 2 * sum(map(max, zip(*levels, strict=True)))) == (requests > 1)


@pytest.mark.parametrize("wrapped", [True, False])
def test_answers_to_one_prompt_share_passes_with_each_other_and_with_other_texts(
    wrapped: bool, draft: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(draft, monkeypatch)
    # the library's whole steps would not be counted
    monkeypatch.setattr(draft_model, "_native_draft", lambda config, session: None)
    method = methods.build("rsd-c", TARGET, shared_passes(draft) if wrapped else draft)

    def members(count: int) -> list[engine.Sequence]:
        return [
            engine.Sequence(
                TARGET,
                method.drafter,
                method.verifier,
                prompt(3),
                Options(Sampling(0.8), TOKENS, seed=number),
            )
            for number in range(count)
        ]

    wanted = [run([each], passes)[0][0] for each in members(3)]
    other, (_, levels, *_), _ = run([sequence(method, 5, 0.8)], passes)
    batch = Scheduler()
    first = batch.add(ParallelSampling(members(3)))
    batch.add(sequence(method, 5, 0.8))
    found: dict[int, list[int]] = {number: [] for number in range(4)}
    counts = []
    while batch:
        before = passes.count
        for event in batch.step():
            assert event.error is None
            if event.number == first:
                for number, step in event.progress:
                    found[number] += step.tokens
            elif event.progress is not None:
                found[3] += event.progress.tokens
        counts.append(passes.count - before)
    assert [found[number] for number in range(4)] == [
        [token for step in steps for token in step.tokens] for steps in (*wanted, other[0])
    ]
    # after the prompt the first member drafts before the others, which copy its cache
    assert counts[1] == (2 if wrapped else 4) * levels
    assert counts[2] == (1 if wrapped else 4) * levels


def test_a_wrapped_model_is_the_model_itself_but_for_its_passes(draft: NativeModel) -> None:
    model = shared_passes(draft)
    assert isinstance(model, SharedPasses)
    assert shared_passes(model) is model
    table = TableModel(torch.zeros(3, 3))
    assert shared_passes(table) is table
    for name in (
        *("abilities", "vocab_size", "context_length", "layers", "hidden_size"),
        *("end_tokens", "device", "pool"),
    ):
        assert getattr(model, name) == getattr(draft, name)
    assert np.array_equal(
        model.embeddings_and_head.weights().embedding, draft.embeddings_and_head.weights().embedding
    )
    session = model.start()
    rows = session.extend([1, 2, 3]).logits
    fork = session.fork()
    assert torch.equal(fork.extend([4]).logits, session.extend([4]).logits)
    own = draft.start()
    assert torch.equal(own.extend([1, 2, 3]).logits, rows)
    assert fork.model is session.model is model
    for each in (session, fork, own):
        each.close()


def test_other_paths_share_passes_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy texts in float32 are the same; the passes of each level are one call of the model."""
    model = LeanModel(tiny_llama(1, layers=1))
    passes = Passes(model, monkeypatch)
    found = []
    for draft in (model, shared_passes(model)):
        method = methods.build("rsd-c", TARGET, draft)
        texts, counts, failed = run([sequence(method, n, 0.0) for n in range(4)], passes)
        assert not failed
        found.append(([step.tokens for text in texts for step in text], sum(counts)))
    (texts, several), (shared, fewer) = found
    assert shared == texts
    assert 2 * fewer < several


def test_a_language_model_shares_passes_of_its_draft_model(draft: NativeModel) -> None:
    from draftwood.text.language_model import LanguageModel
    from letters import letters

    plain = LanguageModel(TARGET, letters(), methods.build("plain", TARGET), "tiny")
    drafter = plain.with_method("rsd-s", draft).method.drafter
    assert isinstance(drafter, DraftModel)
    assert isinstance(drafter.model, SharedPasses)
    assert drafter.model.inner is draft


def test_a_wrapped_model_has_no_layer_of_its_own_and_keeps_its_adapters_mark() -> None:
    model = NativeModel(tiny_llama(1, layers=1))
    model.abilities |= {"mtp"}
    vars(model)["adapter"] = "mark"
    wrapped = SharedPasses(model)
    with pytest.raises(ValueError, match="'mtp'"):
        require_mtp_head(wrapped, "method 'mtp'")
    assert adapter_of(wrapped) == "mark"
