"""The arithmetic of the experiments on self-speculation, and the controls they rest on."""

from pathlib import Path

import pytest
import torch

from benchmarks.self_speculation import paired_counts as counts
from benchmarks.self_speculation import partial_targets, reduced_targets
from benchmarks.self_speculation import recorded_texts as text
from draftwood.drafters import PromptLookup
from draftwood.engine import Options, generate
from draftwood.sampling import Sampling
from draftwood.verifiers import Match


def test_figures_are_of_sums_and_comparisons_of_the_same_prompts() -> None:
    base = {"a": (2.0, 1.0), "b": (4.0, 4.0), "only here": (9.0, 1.0)}
    own = {"a": (3.0, 1.0), "b": (6.0, 4.0)}
    assert counts.figure(own).value == 9.0 / 5.0
    assert (counts.figure(own).low, counts.figure(own).high) == (1.5, 3.0)
    ratio = counts.over(own, base)
    assert (ratio.value, ratio.low, ratio.high, ratio.prompts) == (1.5, 1.5, 1.5, 2)
    assert counts.gain(own, base).value == pytest.approx(0.6)
    assert counts.gain(own, base).low == pytest.approx(0.5)
    assert str(counts.figure({})) == "nan [nan, nan]"


def test_who_is_chosen_on_other_prompts_gains_nothing_by_chance() -> None:
    first = {str(n): (float(n % 2), 1.0) for n in range(8)}  # good on every other prompt
    other = {str(n): (float(1 - n % 2), 1.0) for n in range(8)}
    steady = {str(n): (0.4, 1.0) for n in range(8)}
    assert counts.figure(counts.held_out([first, other])).value == 0.0
    assert counts.figure(counts.held_out([first, steady])).value < 0.5
    better = {str(n): (0.9, 1.0) for n in range(8)}
    assert counts.held_out([steady, better]) == better
    assert counts.best({"steady": steady, "first": first}) == "first"


def test_records_are_not_made_twice_but_for_quiet_ones(tmp_path: Path) -> None:
    records = counts.Records("some", folder=tmp_path)
    records.add("arm", "prompt", text=1, seconds=2.0)
    again = counts.Records("some", folder=tmp_path)
    assert again.has("arm", "prompt")
    assert not again.has("arm", "prompt", 1.0)
    quiet = counts.Records("some", quiet=True, folder=tmp_path)
    assert not quiet.has("arm", "prompt")
    quiet.add("arm", "prompt", text=1, seconds=1.0)
    assert quiet.has("arm", "prompt")
    (row,) = counts.Records("some", folder=tmp_path).rows.values()
    assert (row["seconds"], row["quiet"]) == (1.0, True)
    with pytest.raises(RuntimeError, match="other writes another text after prompt prompt"):
        records.add("other", "prompt", text=2)
    records.add("other", "prompt", 1.0, text=2)  # a drawn one may differ


def test_acceptance_counts_what_was_tested() -> None:
    """Chains of 4: 5 passes, of which 3 kept the first token, 2 the second, 1 the third."""
    row = {"passes": 5, "kept": [3, 2, 1]}
    assert counts.kept_tokens(row) == 6
    assert counts.tested_tokens(4)(row) == 5 + 3 + 2 + 1
    assert counts.tested_tokens(1)(row) == 5


def test_shuffled_scales_keep_the_steps_alone() -> None:
    shuffled = reduced_targets.shuffled_scales
    weights = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    mixed = shuffled(weights)
    own, other = weights.view(-1, 32), mixed.view(-1, 32)
    assert not torch.equal(own, other)

    def spread(groups: torch.Tensor) -> torch.Tensor:
        return groups.amax(1, keepdim=True) - groups.amin(1, keepdim=True)

    def steps(groups: torch.Tensor) -> torch.Tensor:
        return (groups - groups.amin(1, keepdim=True)) / spread(groups)

    assert torch.allclose(spread(own).sort(0).values, spread(other).sort(0).values)
    assert torch.allclose(steps(own), steps(other), atol=1e-5)


def test_a_recorded_text_is_said_again() -> None:
    prompt, answer = [1, 2, 3], [1, 2, 4, 1, 2, 4]
    target = text.TextModel(torch.zeros(1, 8), (*prompt, *answer))
    options = Options(Sampling(), len(answer), seed=0)
    steps = list(generate(target, PromptLookup(2, 3), Match(), prompt, options))
    assert [token for step in steps for token in step.tokens] == answer
    assert len(steps) < len(answer)  # copies are kept
    rows = target.start().extend([1, 2, 4]).logits
    assert rows.argmax(-1).tolist() == [2, 3, 0]  # off the text it says token 0


def test_what_a_single_draft_token_must_bring() -> None:
    """A draft pass of 0.7 plain ones and a second node of 0.05: 1 + a tokens in 1.75 passes."""
    assert partial_targets.break_even(0.7, 1.05) == pytest.approx(0.75)


def test_all_layer_sets_are_told_on_the_same_prompts() -> None:
    """Random sets were counted on every other prompt alone, where drafts are worse."""

    def rows(arm: str, prompts: str, kept: int) -> list[counts.Row]:
        made = {"arm": arm, "temperature": 0.0, "compared": 100}
        return [
            {**made, "prompt": prompt, "right": kept * (1 if prompt in "ac" else 3)}
            for prompt in prompts
        ]

    price = {"arm": "price", "prompt": "all", "temperature": 0.0, "layers": 0.8}
    random = [*rows("random 0", "ac", 20), *rows("random 1", "ac", 5), *rows("random 2", "a", 9)]
    given = [*rows(partial_targets.FIXED, "abcd", 10), *rows("SWIFT", "abcd", 30), *random, price]
    ((_, table),) = partial_targets.layer_tables(given)
    told = {row["left out"]: row for row in table}
    acceptance = {name: float(row["acceptance"].split()[0]) for name, row in told.items()}
    drawn = "best of 2 random sets, chosen on other prompts"
    assert acceptance[partial_targets.FIXED] == 0.10
    assert (acceptance["SWIFT"], acceptance[drawn]) == (0.30, 0.20)
    assert told["SWIFT"]["over the best random set"].startswith("1.50")
    assert told[drawn]["over every other layer"].startswith("2.00")


def test_lengths_are_priced_by_passes_and_bytes_of_one_format() -> None:
    """Passes in int8 beside the bytes of weights in 2 bits make drafting look dear."""
    nodes, costs, weight_bytes = text.node_costs()
    assert (nodes[0], costs[0]) == (1, 1.0)
    assert 8 <= 8 * weight_bytes / 1034.5e6 < 9  # bits of each parameter, with their scales
