"""Probes find what is planted in hidden states, and nothing in what is shuffled or untrained."""

import pytest
import torch
from torch import Tensor

from data_models import target
from draftwood_train.inspection import readings as rows_of
from draftwood_train.inspection.acceptance import expected, laws
from draftwood_train.inspection.documents import Document, cut, parts, written
from draftwood_train.inspection.probe import Classes
from draftwood_train.inspection.readings import Readings, TokenTable
from draftwood_train.inspection.surplus import (
    DRAFTER,
    ROOT,
    Interval,
    SplitReadings,
    Surplus,
    climbed,
    surplus,
)

VOCAB, DIM, LENGTH = 16, 24, 40


def nothing() -> None:
    """No report."""


def planted(count: int, seed: int, shuffled: bool = False) -> Readings:
    """Documents of random tokens; the inner states hold the token 2 ahead, the others noise."""
    drawn = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (count, LENGTH + 4), generator=drawn)
    ahead = torch.stack([tokens[:, by : LENGTH + by] for by in range(1, 5)], -1).flatten(0, 1)
    vectors = torch.randn(VOCAB, DIM, generator=torch.Generator().manual_seed(0))

    def noise() -> Tensor:
        return torch.randn(len(ahead), DIM, generator=drawn)

    inner = 3 * vectors[ahead[:, 1]] + noise()
    if shuffled:
        inner = inner[torch.randperm(len(inner), generator=drawn)]
    states = {"inner": inner, "final": noise(), "untrained": noise()}
    document = torch.arange(count).repeat_interleave(LENGTH)
    return Readings(document, tokens[:, :LENGTH].flatten(), ahead, states)


def found(ahead: int, shuffled: bool = False) -> tuple[Surplus, dict, SplitReadings, Classes]:
    own = [planted(count, seed, shuffled) for seed, count in enumerate((90, 30, 30))]
    drawn = torch.Generator().manual_seed(5)
    table = TokenTable(torch.arange(VOCAB), torch.randn(VOCAB, DIM, generator=drawn))
    made = SplitReadings.of(own, table)
    classes = Classes.of(own[0].ahead[:, 1], torch.randn(VOCAB, DIM, generator=drawn))
    probes = climbed(made, classes, ahead, 0, nothing)
    return surplus(probes, made, classes, ahead), probes, made, classes


def test_what_is_planted_in_inner_states_is_found_there_and_nowhere_else() -> None:
    bits, *_ = found(2)
    assert bits.newest == pytest.approx(4, abs=0.15)
    assert bits.beyond_next.low > 2
    assert bits.by_states.low > 2
    assert abs(bits.by_next.mean) < 0.05
    assert abs(bits.by_untrained.mean) < 0.05
    assert bits.beyond_next.low < bits.beyond_next.mean < bits.beyond_next.high


def test_states_that_are_shuffled_or_hold_another_token_give_nothing() -> None:
    assert abs(found(2, shuffled=True)[0].beyond_next.mean) < 0.05
    assert abs(found(3)[0].by_states.mean) < 0.05


def test_acceptance_is_foretold_from_states_and_not_from_tokens() -> None:
    _, probes, made, classes = found(2)
    sure = torch.nn.functional.one_hot(classes.of_token[made.readings[-1].ahead[:, 1]]).float()
    from_states, from_tokens = (
        expected(name, {2: (probes[name], name)}, made, classes, [sure[:, : len(classes.tokens)]])
        for name in (DRAFTER, ROOT)
    )
    right, guessed = from_states.depths[0], from_tokens.depths[0]
    assert right is not None
    assert guessed is not None
    assert right > 0.9
    assert guessed < 0.15
    assert from_states.tokens_per_pass == pytest.approx(1 + right)
    assert from_states.overlap is not None
    assert from_tokens.overlap is not None
    assert from_states.overlap[0] > 0.5
    assert from_tokens.overlap[0] < 0.15


def test_an_interval_draws_documents_not_places() -> None:
    document = torch.arange(20).repeat_interleave(50)
    alike = (document % 2).float()
    wide, narrow = Interval.of(alike, document), Interval.of(alike, torch.arange(1000))
    assert wide.mean == narrow.mean == 0.5
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_places_are_read_with_the_states_and_the_tokens_ahead() -> None:
    lm = target()
    document = Document(tuple(range(3, 33)), first=4)
    reads = [(lm.model, {"inner": (2, 3), "final": (6,)})]
    (own,) = [rows_of.read([document], reads, nothing)]
    assert own.newest.tolist() == list(range(7, 29))
    assert own.ahead[0].tolist() == [8, 9, 10, 11]
    session = lm.model.start()
    output = session.extend(document.tokens[:5], hidden=(2, 3, 6))
    whole = torch.cat([output.states(layer)[-1].float() for layer in (2, 3)])
    assert torch.allclose(own.states["inner"][0], whole, atol=1e-4)
    assert torch.allclose(own.states["final"][0], output.states(6)[-1].float(), atol=1e-4)
    law = output.logits[-1].float().softmax(-1)
    early = Document(document.tokens, first=3)
    told = laws(lm.model, [early], torch.tensor([5, 9]), nothing)
    assert torch.allclose(told[0][0], law[[5, 9]], atol=1e-4)


def test_a_table_holds_what_a_model_makes_of_tokens_alone() -> None:
    lm = target()
    table = rows_of.token_table(lm.model, torch.tensor([4, 9]), 1, (6,), nothing)
    session = lm.model.start()
    alone = session.extend([1, 9], hidden=(6,)).states(6)[-1].float()
    row = table.of(torch.tensor([9]))[0]
    assert torch.allclose(row[-len(alone) :], alone, atol=1e-4)


def test_texts_are_the_models_own_or_cut_from_the_users() -> None:
    lm = target()
    batches = written(lm, 100, 1.0, 0)
    own = next(batches)
    assert all(each.first >= 1 and each.places > 0 for each in own)
    assert len({each.tokens for each in own}) == len(own)
    text = "abc def\n\n" * 200
    pieces = cut(lm, text, 400)
    assert 400 <= sum(each.places for each in pieces) < 800
    assert all(len(each.tokens) <= 192 for each in pieces)
    with pytest.raises(ValueError, match="too little text"):
        parts(pieces, 0)
