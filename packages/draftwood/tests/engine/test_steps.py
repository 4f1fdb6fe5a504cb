"""Steps that the library makes in one call are those that Python makes piece by piece."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import Drafter, MultiSource, Nothing, SuffixDecoding
from draftwood.engine import Options
from draftwood.engine.executors import native
from draftwood.engine.scheduler import Scheduler
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Context, Sampling
from draftwood.sampling_params import OPTIONS
from draftwood.stats import Step
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood.verifiers.verifier import Verifier
from library_steps import steps, trees_made
from roads import head_of, tiny_llama

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1, 5]


def cheap(nodes: int) -> float:
    """Draft tokens cost next to nothing, so that trees are large."""
    return 1.0 + 0.001 * nodes


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(context=256), "float32")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return trees_made(monkeypatch)


def drafters() -> dict[str, Drafter]:
    budget = Budget(cheap, per_draft_token=0.0, per_step=0.0)
    return {
        "nothing": Nothing(),
        "combined": MultiSource(budget=budget),
        "suffix": SuffixDecoding(budget=budget),
        "resting": MultiSource(budget=Budget(lambda nodes: float(nodes), per_step=1.0)),
    }


def sequence(
    model: NativeModel, drafter: Drafter, verifier: Verifier | None = None, **options: object
) -> engine.Sequence:
    wanted = Options(**{"max_new_tokens": 60, "seed": 5, **options})  # type: ignore[arg-type]
    return engine.Sequence(model, drafter, verifier or Match(), PROMPT, wanted)


def facts(found: Sequence[Step]) -> list[object]:
    return [
        (step.tokens, step.drafted, step.accepted, step.path, repr(step.tree), step.tree.sources)
        for step in found
        if step.tree is not None
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(drafters()))
def test_whole_steps_equal_those_in_pieces(
    model: NativeModel,
    made: list[int],
    name: str,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "resting":  # a rest begins between two rows of steps
        monkeypatch.setattr(native, "IN_A_ROW", 1)
    sampler = Sampling(temperature)
    whole = list(steps(sequence(model, drafters()[name], sampler=sampler)))
    assert len(made) == len(whole) - 1  # all but the prompt's
    pieces = list(steps(sequence(model, drafters()[name], sampler=sampler), whole=False))
    assert len(made) == len(whole) - 1
    assert facts(whole) == facts(pieces)
    assert {tuple(step.seconds) for step in whole} == {("draft", "target", "verify")}
    if name == "combined":
        assert max(made) > 4
        assert any(step.accepted for step in whole)
    if name == "resting":
        assert 1 in made


def test_other_draws_give_other_texts(model: NativeModel) -> None:
    """So the texts above agree because the draws do."""
    drafter, sampler = drafters()["combined"], Sampling(1.0)
    one, other = (
        list(steps(sequence(model, drafter, sampler=sampler, seed=seed))) for seed in (5, 6)
    )
    assert facts(one) != facts(other)


def test_a_text_in_company_is_made_of_whole_steps_too(model: NativeModel, made: list[int]) -> None:
    sampler, drafter = Sampling(1.0), drafters()["combined"]
    expected = [step.tokens for step in steps(sequence(model, drafter, sampler=sampler))]
    batch, found = Scheduler(), list[Step]()
    made.clear()
    first = batch.add(sequence(model, drafter, sampler=sampler))
    others = [batch.add(sequence(model, drafter, seed=seed)) for seed in (1, 2)]
    others.append(batch.add(sequence(model, drafter, seed=3, logprobs=1)))  # drafted in Python
    events = []
    while batch:
        step = batch.step()
        events += [event.number for event in step if event.progress is not None]
        found += [event.progress for event in step if event.number == first]
    assert [token for each in found for token in each.tokens] == [*chain(*expected)]
    whole = [number for number in events if number != others[-1]]
    assert len(made) == len(whole) - 3  # the first token of each comes with its prompt


class Chatty(Nothing):
    """A subclass that the library knows nothing of."""

    def propose(self, root: int, context: Context) -> DraftTree:
        return DraftTree.of([root, 7], [-1, 0])


@pytest.mark.parametrize(
    "case",
    [
        {"logprobs": 2},
        {"bound": lambda tree, probs: 0.5},
        {"verifier": Rejection()},
        {"drafter": Chatty()},
    ],
    ids=["logprobs", "bound", "rejection", "subclass"],
)
def test_what_only_python_can_do_is_done_there(
    model: NativeModel, made: list[int], case: dict
) -> None:
    drafter = case.pop("drafter", Nothing())
    text = sequence(model, drafter, case.pop("verifier", None), max_new_tokens=4, **case)
    found = list(steps(text))
    assert len(found) > 1
    assert not made
    assert found[1].drafted == isinstance(drafter, Chatty)


@pytest.mark.parametrize("name", ["top_k", "presence_penalty"])
def test_options_that_the_library_does_not_know_are_left_to_python(
    model: NativeModel, made: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new option is obeyed from its first day, by Python."""
    for sampler, whole in ((Sampling(1.0, **{name: 2}), False), (Sampling(1.0), True)):  # type: ignore[arg-type]
        monkeypatch.setitem(OPTIONS, name, replace(OPTIONS[name], in_steps=False))  # type: ignore[arg-type]
        made.clear()
        list(steps(sequence(model, Nothing(), None, max_new_tokens=4, sampler=sampler)))
        assert bool(made) == whole


def test_a_text_ends_where_its_context_does(model: NativeModel, made: list[int]) -> None:
    prompt = PROMPT * 17
    text = engine.Sequence(
        model, drafters()["combined"], Match(), prompt, Options(max_new_tokens=500)
    )
    found = [token for step in steps(text) for token in step.tokens]
    assert text.finish_reason == "length"
    assert made
    assert len(prompt) + len(found) == 257  # the last one need not be run


def test_a_broken_model_ends_the_request_with_the_place() -> None:
    hf_model = tiny_llama()
    head_of(hf_model)[9] = math.nan
    model = NativeModel(hf_model, "float32")
    session = model.start()
    session.extend(PROMPT)
    text = engine.Sequence(model, Nothing(), Match(), PROMPT, Options(), session)
    text.begin(3, {})
    with pytest.raises(ValueError, match=r"token 2 of the text cannot be chosen.*NaN"):
        list(steps(text))
