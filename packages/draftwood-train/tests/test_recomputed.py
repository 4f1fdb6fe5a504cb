"""States that are computed in shared passes just before they are needed."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from data_models import target
from draftwood_train.data.states import states_of
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.flatness import flattest, stored_entropy
from draftwood_train.packing import RowPacking
from draftwood_train.recomputed import AT_ONCE, read, states_together
from training_cases import target as weights

LAYERS = (2, 3, 6)


@dataclass(frozen=True)
class Top:
    """The likeliest tokens at an answer."""

    logs: Tensor
    log_normalizer: Tensor


@dataclass(frozen=True)
class Tokens:
    """A text without states."""

    tokens: Tensor
    answer: int
    top: Top | None
    is_greedy: bool = True
    source: str = "own"


class UnrunTexts(list[Tokens]):
    """Texts of which only tokens are stored."""

    layers = LAYERS

    def __init__(self, model, texts):  # type: ignore[no-untyped-def]
        super().__init__(texts)
        self.model = model
        self.lengths = [len(text.tokens) for text in texts]
        self.answers = [text.answer for text in texts]

    def tokens_of(self, index: int) -> Tokens:
        return super().__getitem__(index)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        raise AssertionError("a text was run alone")


@pytest.fixture(scope="module")
def model():  # type: ignore[no-untyped-def]
    return target().model


def token_texts(model, count: int = 11) -> tuple[UnrunTexts, TextsInMemory]:  # type: ignore[no-untyped-def]
    """Texts without states, and the same as they would be stored."""
    drawn, late, stored = torch.Generator().manual_seed(0), [], TextsInMemory()
    for number in range(count):
        length = [7, 30, 150, 290][number % 4]
        tokens = torch.randint(model.vocab_size, (length,), generator=drawn)
        states, normalizers = states_of(model, tokens, LAYERS)
        logs = (torch.rand(length - 2, 4, generator=drawn) / 4).log()
        late.append(Tokens(tokens, 3, Top(logs, normalizers[2:])))
        stored.append(StoredText(tokens, 3, True, "own", states, normalizers))
    return UnrunTexts(model, late), stored


def test_shared_passes_give_the_states_of_texts_alone(model) -> None:  # type: ignore[no-untyped-def]
    _, stored = token_texts(model)
    assert len(stored) > AT_ONCE
    found = states_together(model, [text.tokens.tolist() for text in stored], LAYERS)
    for states, text in zip(found, stored, strict=True):
        assert states.shape == text.states.shape
        assert torch.allclose(states, text.states, atol=1e-4)
    assert not torch.allclose(found[0], stored[4].states, atol=1e-2)
    assert states_together(model, [], LAYERS) == []


def test_rows_are_the_same_as_of_stored_states(model) -> None:  # type: ignore[no-untyped-def]
    late, stored = token_texts(model)
    one, two = (RowPacking(each, (0, 1), 2, 128, 4, 0) for each in (late, stored))  # type: ignore[arg-type]
    for batch in one.plan(0):
        ours, theirs = one.packed(batch), two.packed(batch)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.allclose(ours.states, theirs.states, atol=1e-4)
        assert torch.allclose(ours.final, theirs.final, atol=1e-4)
        known = ours.positions >= 2
        assert torch.allclose(ours.log_normalizer[known], theirs.log_normalizer[known], atol=1e-4)


def test_stored_states_are_read_as_they_are() -> None:
    texts = TextsInMemory(token_texts(target().model, 2)[1])
    assert read(texts, [1, 1])[1] is texts[1]


def test_states_that_are_no_numbers_are_refused() -> None:
    texts = TextsInMemory(token_texts(target().model, 2)[1])
    texts[1].states[3, 1, 2] = float("nan")
    assert list(read(texts, [0])) == [0]
    with pytest.raises(ValueError, match=r"states of text 1 \(own\) are no finite numbers"):
        read(texts, [0, 1])


def test_flat_texts_are_told_by_stored_probabilities(model) -> None:  # type: ignore[no-untyped-def]
    late, _ = token_texts(model, 4)
    for number, share in enumerate((0.24, 0.05, 0.2, 0.01)):
        sure = torch.tensor([[1 - 3 * share - 0.01, share, share, share]]).log()
        late[number : number + 1] = [Tokens(late.tokens_of(number).tokens, 3, Top(sure, sure))]
    assert flattest(late, 2, weights(), 0.5) == {0, 2}  # type: ignore[arg-type]
    even = Top(torch.full((3, 4), 0.2).log(), torch.zeros(3))
    assert stored_entropy(even) == pytest.approx(float(torch.tensor(5.0).log()), abs=1e-5)
