"""Every reported number, from steps written down by hand."""

import json
import math

import pytest

from draftwood.drafters import Nothing
from draftwood.engine import Options, generate
from draftwood.stats import Stats, Step
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_torch.models.transformers import TransformersModel

SECONDS = {"draft": 0.5, "target": 2.0, "verify": 0.25}
KEYS = [
    "tokens",
    "target_runs",
    "block_efficiency",
    "drafted",
    "accepted",
    "accepted_by_depth",
    "seconds",
] + ["tokens_per_second"]  # issue 2, section 6


def prefill() -> Step:
    return Step([1], seconds=SECONDS)


def step(accepted: int, drafted: int = 4, bound: float | None = None) -> Step:
    tree = DraftTree.chain(range(drafted + 1))
    return Step(
        list(range(accepted + 1)),
        drafted,
        accepted,
        SECONDS,
        tree,
        tuple(range(1, accepted + 1)),
        bound,
    )


STEPS = [prefill(), step(2), step(0), step(3, drafted=7), step(0, drafted=0)]


def test_sums() -> None:
    stats = Stats.of(STEPS)
    assert (stats.tokens, stats.prefills, stats.target_runs) == (10, 1, 4)
    assert (stats.drafted, stats.accepted, stats.accepted_by_depth) == (15, 5, [2, 2, 1])
    assert stats.seconds == {"prefill": 2.75, "draft": 2.0, "target": 8.0, "verify": 1.0}
    assert stats.decode_seconds == 11.0


def test_block_efficiency_is_tokens_per_run_without_the_prompts() -> None:
    assert Stats.of(STEPS).block_efficiency == 9 / 4
    assert Stats.of(STEPS).block_efficiency == 1 + 5 / 4  # one more than is accepted per pass
    assert Stats.of([prefill(), step(0), step(0)]).block_efficiency == 1.0
    assert Stats.of([prefill()]).block_efficiency == 1.0
    assert Stats().block_efficiency == 1.0


def test_tokens_per_second_is_decoding_speed() -> None:
    assert Stats.of(STEPS).tokens_per_second == 9 / 11
    assert Stats.of([prefill()]).tokens_per_second == 0.0


def test_adding_is_counting_both() -> None:
    others = [prefill(), step(1, bound=0.5), step(5)]
    for here, there in ((STEPS, others), (others, STEPS)):
        both = Stats.of(here) + Stats.of(there)
        assert both == Stats.of([*here, *there])
        assert both.accepted_by_depth == [4, 3, 2, 1, 1]
        assert both.block_efficiency == (both.tokens - 2) / 6


def test_adding_texts_of_the_same_depth_counts_both() -> None:
    one, other = [prefill(), step(2)], [prefill(), step(1), step(2)]
    assert (Stats.of(one) + Stats.of(other)).accepted_by_depth == [3, 2]


def test_adding_nothing_changes_nothing() -> None:
    stats = Stats.of(STEPS)
    assert stats + Stats() == stats
    assert Stats() + stats == stats


def test_sums_do_not_share_their_lists() -> None:
    one, other = Stats.of(STEPS), Stats.of(STEPS)
    both = one + other
    both.add(step(1))
    assert one == other == Stats.of(STEPS)


def test_acceptance_at_the_root_counts_runs_whose_bound_is_known() -> None:
    stats = Stats.of([prefill(), step(2, bound=0.9), step(0, bound=0.5), step(1)])
    assert stats.root_acceptance == 0.5
    assert stats.root_acceptance_bound == 0.7
    assert Stats.of(STEPS).root_acceptance is None
    assert Stats.of(STEPS).root_acceptance_bound is None


def test_json_has_the_promised_keys() -> None:
    numbers = json.loads(json.dumps(Stats.of(STEPS).as_json()))
    assert list(numbers) == KEYS
    assert list(numbers["seconds"]) == ["prefill", "draft", "target", "verify", "total"]
    assert numbers["seconds"]["total"] == 13.75
    assert numbers["block_efficiency"] == 2.25
    bounded = Stats.of([prefill(), step(2, bound=0.9)]).as_json()
    assert list(bounded) == [*KEYS, "root_acceptance", "root_acceptance_bound"]


def steps_of(drafter: Nothing | TokenRecycling, **options: object) -> list[Step]:
    target = TransformersModel(tiny_llama())
    return list(generate(target, drafter, Match(), [1, 2, 3], Options(**options)))  # type: ignore[arg-type]


def test_plain_decoding_has_block_efficiency_one() -> None:
    stats = Stats.of(steps_of(Nothing(), max_new_tokens=9))
    assert (stats.tokens, stats.prefills, stats.target_runs) == (9, 1, 8)
    assert stats.block_efficiency == 1.0
    assert all(seconds > 0 for phase, seconds in stats.seconds.items() if phase != "draft")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 40])
def test_steps_of_a_run_add_up(limit: int) -> None:
    steps = steps_of(TokenRecycling(), max_new_tokens=limit)
    stats = Stats.of(steps)
    assert stats.tokens == sum(len(step.tokens) for step in steps) == limit
    assert stats.accepted == sum(stats.accepted_by_depth) == sum(len(step.path) for step in steps)
    assert stats.tokens == 1 + stats.accepted + stats.target_runs
    assert stats.drafted == sum(len(step.tree) - 1 for step in steps if step.tree is not None)
    assert math.isclose(stats.block_efficiency, 1 + stats.accepted / max(1, stats.target_runs))


def test_a_text_that_ends_within_a_block_counts_what_it_emits() -> None:
    tokens = [
        token for step in steps_of(TokenRecycling(), max_new_tokens=20) for token in step.tokens
    ]
    for end in sorted(set(tokens))[::3]:
        steps = steps_of(TokenRecycling(), max_new_tokens=20, stop_tokens=frozenset({end}))
        emitted = [token for step in steps for token in step.tokens]
        assert emitted == tokens[: tokens.index(end) + 1]
        for run in steps[1:]:
            assert run.accepted == len(run.path) <= len(run.tokens) <= run.accepted + 1
            assert run.tree is not None
            assert [run.tree.token_list[node] for node in run.path] == run.tokens[: run.accepted]
