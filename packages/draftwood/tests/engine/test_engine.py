"""The loop: where texts end, what is refused, what seeds promise, and one wait for the device per
step.
"""

import gc
from weakref import ref

import pytest
import torch

from draftwood.drafters import Drafter, DraftModel, DraftSession, Nothing, PromptLookup
from draftwood.engine import Options, Sequence, generate, generate_batch
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.shapes import StochasticBeam, Widths
from draftwood.stats import Stats, Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.verifiers import Match, Rejection
from draftwood_bench.run.optimal import optimal_acceptance
from draftwood_methods.verifiers.typical import Typical
from draftwood_torch.models.transformers import TransformersModel


@pytest.fixture(scope="module")
def cycle() -> TableModel:
    """Says 0 1 2 ... 9 0 1 2 ... whatever happens."""
    return TableModel(torch.eye(10).roll(1, dims=1) * 50)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def run(model: TableModel, options: Options, prompt: tuple[int, ...] = (0,)) -> list[Step]:
    return list(generate(model, DraftModel(model, Widths((2, 1, 1))), Rejection(), prompt, options))


def test_every_step_emits_what_it_accepted_and_one_more(cycle: TableModel) -> None:
    steps = run(cycle, Options(max_new_tokens=13))
    assert tokens_of(steps) == [(n + 1) % 10 for n in range(13)]
    assert steps[0].is_prefill
    for step in steps[1:]:
        assert len(step.tokens) == step.accepted + 1
        assert step.drafted >= step.accepted
    assert Stats.of(steps).block_efficiency == pytest.approx(12 / 3)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_the_limit_is_exact(cycle: TableModel, limit: int) -> None:
    steps = run(cycle, Options(max_new_tokens=limit))
    assert len(tokens_of(steps)) == limit
    assert all(step.drafted <= 4 * max(0, limit - 1) for step in steps)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_stop_token_inside_a_block_ends_the_text_there(cycle: TableModel, stop: int) -> None:
    sequence = Sequence(
        cycle,
        DraftModel(cycle, Widths((1, 1, 1))),
        Rejection(),
        [0],
        Options(stop_tokens=frozenset({stop})),
    )
    steps = [step for _, step in generate_batch([sequence])]
    assert tokens_of(steps) == list(range(1, stop + 1))
    assert sequence.finish_reason == "stop"
    assert sum(step.accepted for step in steps) <= stop - 1


def test_the_context_is_used_to_the_last_token() -> None:
    model = TransformersModel(tiny_llama(0, context=24))
    for drafter in (Nothing(), PromptLookup(), DraftModel(model, StochasticBeam(3, 4))):
        sequence = Sequence(model, drafter, Match(), [1, 2, 3, 4], Options(max_new_tokens=99))
        tokens = tokens_of([step for _, step in generate_batch([sequence])])
        assert len(tokens) == 21  # the last one is emitted without being run
        assert sequence.finish_reason == "length"


@pytest.mark.parametrize("drafter", [Nothing(), PromptLookup()])
def test_prompt_and_answer_have_no_more_tokens_than_asked_for(drafter: Drafter) -> None:
    model = TransformersModel(tiny_llama(0, context=24))
    options = Options(max_new_tokens=99, context=12)
    sequence = Sequence(model, drafter, Match(), [1, 2, 3, 4], options)
    tokens = tokens_of([step for _, step in generate_batch([sequence])])
    assert len(tokens) == options.longest(model, [1, 2, 3, 4]) == 12 - 4
    assert sequence.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "no tokens"), ([99], "outside"), ([-1], "outside"), (list(range(24)), "context is 24")],
)
def test_bad_prompts(prompt: list[int], message: str) -> None:
    model = TransformersModel(tiny_llama(0, context=24))
    with pytest.raises(ValueError, match=message):
        Sequence(model, Nothing(), Match(), prompt, Options())


def test_bad_limits_and_lossy_rules() -> None:
    with pytest.raises(ValueError, match="max_new_tokens"):
        Options(max_new_tokens=0)
    model = TableModel(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="exact=False"):
        Sequence(model, Nothing(), Typical(), [0], Options())
    assert (
        len(
            tokens_of(
                list(
                    generate(
                        model, Nothing(), Typical(), [0], Options(exact=False, max_new_tokens=5)
                    )
                )
            )
        )
        == 5
    )


def test_seeds_reproduce_and_differ() -> None:
    model = TableModel(torch.randn(30, 30, generator=torch.Generator().manual_seed(0)))
    texts = [
        tokens_of(run(model, Options(Sampling(1.0), 40, seed=seed)))
        for seed in (1, 1, 2, None, None)
    ]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 4


def test_closing_a_text_early_gives_its_cache_back() -> None:
    model = TransformersModel(tiny_llama(0))
    for _ in range(3):
        steps = generate(model, Nothing(), Match(), [1, 2], Options())
        next(steps)
        next(steps)
        steps.close()
    assert model.pool.slots == 1


def test_the_bound_stands_beside_what_was_accepted() -> None:
    rng = torch.Generator().manual_seed(1)
    target, draft = (TableModel(torch.randn(8, 8, generator=rng) * 1.5) for _ in range(2))

    def bound(tree, probs) -> float:
        return optimal_acceptance(probs[0], tree.probs[0], len(tree.children[0]), tree.draw)

    options = Options(Sampling(1.0), 1500, seed=0, bound=bound)
    stats = Stats.of(generate(target, DraftModel(draft, Widths((2,))), Rejection(), [0], options))
    assert stats.root_acceptance is not None
    assert stats.root_acceptance_bound is not None
    spread = 3 * (0.25 / stats.bounded) ** 0.5
    assert (
        stats.root_acceptance_bound - 0.2
        < stats.root_acceptance
        < stats.root_acceptance_bound + spread
    )
    assert "root_acceptance_bound" in stats.as_json()


def test_penalties_give_the_same_text_with_and_without_trees() -> None:
    model = TransformersModel(tiny_llama(0, layers=3))
    sampling = Sampling(
        0.0,
        repetition_penalty=1.4,
        frequency_penalty=0.5,
        presence_penalty=0.2,
        logit_bias={3: 1.5},
    )
    options = Options(sampling, 40)
    plain = tokens_of(list(generate(model, Nothing(), Match(), [5, 6, 7], options)))
    for drafter, verifier in (
        (DraftModel(model, StochasticBeam(3, 3)), Rejection()),
        (PromptLookup(), Match()),
    ):
        assert tokens_of(list(generate(model, drafter, verifier, [5, 6, 7], options))) == plain


@pytest.mark.parametrize("drafter", [Nothing(), PromptLookup()], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", [TransformersModel, NativeModel])
def test_a_text_that_is_dropped_is_freed_without_the_collector(
    kind: type[NativeModel], drafter: Drafter
) -> None:
    """Executors know their text, and it knows them: no ring of references may hold both."""
    model = kind(tiny_llama(0))
    gc.collect()
    gc.disable()
    try:
        sequence = Sequence(model, drafter, Match(), [1, 2, 1, 2], Options())
        for _ in range(3):
            assert sequence.commit(model.forward(sequence.plan()), 0.0)
        assert model.pool.used
        gone = ref(sequence)
        del sequence
        assert gone() is None
        assert not model.pool.used
    finally:
        gc.enable()


def test_a_draft_session_is_closed_where_no_executor_can_be_chosen(
    cycle: TableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[DraftSession]()

    class Watched(Nothing):
        def close(self) -> None:
            closed.append(self)

    def broken(*given: object) -> None:
        raise RuntimeError("no library")

    monkeypatch.setattr("draftwood.engine.executors.starting._caller", broken)
    steps = generate(cycle, Watched(), Match(), [0], Options())
    with pytest.raises(RuntimeError, match="no library"):
        next(steps)
    assert len(closed) == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_pass_does_not_wait_for_the_device() -> None:
    model = TransformersModel(tiny_llama(0, layers=3).cuda())
    drafter = DraftModel(TransformersModel(tiny_llama(1, layers=1).cuda()), StochasticBeam(3, 3))
    sequence = Sequence(model, drafter, Match(), [1, 2, 3], Options(Sampling(1.0), 30, seed=0))
    sequence.commit(model.forward(sequence.plan()), 0.0)  # the prompt
    inputs = sequence.plan()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = model.forward(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (step,) = sequence.commit(outputs, 0.0)
    assert step is not None
    assert step.tokens
