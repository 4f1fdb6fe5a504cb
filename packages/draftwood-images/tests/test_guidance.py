"""Guided models: rows of both sequences mixed, in trees, cut prompts, forks and rewound texts."""

from collections.abc import Sequence

import numpy as np
import pytest

from draftwood.drafters import Drafter, JacobiSampled, Nothing, PromptLookup, RacedJacobi
from draftwood.engine import Options, generate
from draftwood.models.model import ForwardInput, Model, PromptInput, RowsInput
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.testing import TableModel, distance
from draftwood.testing.windows import WindowCase
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood_images.guidance import GuidedModel
from draftwood_images.small import small_picture_model

SCALE, OPENER, INSTEAD = 2.5, (5,), (6,)
PROMPT = [0, 2, 5]
TEXT = [8, 9, 10, 7, 9]


@pytest.fixture(scope="module")
def inner() -> Model:
    return small_picture_model().model


@pytest.fixture
def guided(inner: Model) -> GuidedModel:
    return GuidedModel(inner, SCALE, OPENER, INSTEAD)


def rows_of(model: Model, tokens: Sequence[int]) -> np.ndarray:
    """Rows after each of these tokens, in one pass."""
    session = model.start()
    rows = session.extend(tokens).rows
    session.close()
    return rows


def expected(inner: Model, text: Sequence[int], scale: float = SCALE) -> np.ndarray:
    """Guided rows after the opener and each token of a text, by the formula."""
    with_words = rows_of(inner, [*PROMPT, *text])[len(PROMPT) - 1 :]
    without = rows_of(inner, [*INSTEAD, *OPENER, *text])[len(INSTEAD) :]
    return without + np.float32(scale) * (with_words - without)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_rows_are_mixed_wherever_the_prompt_is_cut(
    inner: Model, guided: GuidedModel, cut: int
) -> None:
    session, text = guided.start(), [*PROMPT, *TEXT]
    pieces = [session.extend(piece).rows for piece in (text[:cut], text[cut:]) if piece]
    rows = np.concatenate(pieces)
    assert session.length == len(text)
    np.testing.assert_array_equal(rows[len(PROMPT) - 1 :], expected(inner, TEXT))
    np.testing.assert_array_equal(rows[: len(PROMPT) - 1], rows_of(inner, PROMPT)[:-1])


def test_trees_commits_and_texts_taken_back(inner: Model, guided: GuidedModel) -> None:
    session = guided.start()
    session.extend(PROMPT, keep="none")
    tree = DraftTree.of([8, 9, 7, 10], [-1, 0, 0, 1])
    rows = session.forward(tree).rows
    np.testing.assert_array_equal(rows[[0, 1, 3]], expected(inner, [8, 9, 10])[1:])
    np.testing.assert_array_equal(rows[2], expected(inner, [8, 7])[2])
    session.commit([0, 2])
    assert session.tokens == [*PROMPT, 8, 7]
    np.testing.assert_array_equal(session.extend([9]).rows, expected(inner, [8, 7, 9])[3:])
    session.rewind(2)
    again = session.forward(DraftTree.chain([7, 10]), first=1).rows
    np.testing.assert_array_equal(again, expected(inner, [8, 7, 10])[3:])
    session.rewind(3)  # the opener too
    assert session.tokens == PROMPT[:1]
    np.testing.assert_array_equal(
        session.extend([2, 5, 8], keep="last").rows, expected(inner, [8])[1:]
    )


def test_forks_write_texts_of_their_own(inner: Model, guided: GuidedModel) -> None:
    session = guided.start()
    session.extend([*PROMPT, 8])
    whole, part, words = session.fork(), session.fork(length=3), session.fork(length=1)
    session.extend([10])
    session.close()
    np.testing.assert_array_equal(whole.extend([9]).rows, expected(inner, [8, 9])[2:])
    np.testing.assert_array_equal(part.extend([7]).rows, expected(inner, [7])[1:])
    np.testing.assert_array_equal(words.extend([2, 5, 7]).rows[-1:], expected(inner, [7])[1:])
    whole.clear()
    np.testing.assert_array_equal(whole.extend(PROMPT).rows[-1:], expected(inner, [])[:1])
    with pytest.raises(ValueError, match="empty session"):
        part.fork(words)


def test_texts_in_one_pass_do_not_touch_each_other(inner: Model, guided: GuidedModel) -> None:
    one, two = guided.start(), guided.start()
    one.extend(PROMPT)
    tree = DraftTree.chain([8, 9])
    outputs = guided.forward([ForwardInput(one, tree), PromptInput(two, [*PROMPT, 7], "last")])
    np.testing.assert_array_equal(outputs[0].rows, expected(inner, [8, 9])[1:])
    np.testing.assert_array_equal(outputs[1].rows, expected(inner, [7])[1:])


@pytest.mark.parametrize(("scale", "tokens"), [(1.0, PROMPT), (0.0, [*INSTEAD, *OPENER])])
def test_a_scale_of_one_is_the_model_and_of_none_forgets_the_words(
    inner: Model, scale: float, tokens: list[int]
) -> None:
    rows = rows_of(GuidedModel(inner, scale, OPENER, INSTEAD), [*PROMPT, *TEXT])
    plain = rows_of(inner, [*tokens, *TEXT])[len(tokens) - 1 :]
    np.testing.assert_allclose(rows[len(PROMPT) - 1 :], plain, atol=1e-5)


def test_texts_are_drafted_losslessly(inner: Model) -> None:
    """Guidance with several opening tokens and other words, as texts have it."""
    model = GuidedModel(inner, 1.8, (5, 9), (3, 1))

    def written(drafter: Drafter, temperature: float) -> list[list[int]]:
        sampling = Sampling(temperature, top_k=4)
        return [
            [
                token
                for step in generate(
                    model, drafter, Match(), [0, 1, 2, 5, 9, 8], Options(sampling, 30, seed=seed)
                )
                for token in step.tokens
            ]
            for seed in range(3)
        ]

    for temperature in (0.0, 1.0):
        plain = written(Nothing(), temperature)
        for drafter in (RacedJacobi(4), PromptLookup()):
            assert written(drafter, temperature) == plain
    unguided, prompt = GuidedModel(inner, 1.0, (5, 9), (3, 1)), [0, 1, 2, 5, 9, 8]
    assert np.abs(rows_of(unguided, prompt)[-1] - rows_of(model, prompt)[-1]).max() > 1e-3
    assert written(Nothing(), 1.0) != written(Nothing(), 0.0)


def test_sjd_keeps_the_guided_distribution() -> None:
    logits = np.random.default_rng(2).normal(size=(4,) * 4).astype(np.float32)
    model = GuidedModel(TableModel(logits), 2.0, (3,), (1,))
    case = WindowCase(model, [0, 2, 3, 1], Sampling(1.0, top_k=3))
    assert case.off(JacobiSampled(2), Rejection()) < 1e-5
    other = WindowCase(TableModel(logits), [0, 2, 3, 1], Sampling(1.0, top_k=3))
    guided, plain = (each.law(JacobiSampled(2), Rejection()) for each in (case, other))
    assert distance(guided, plain) > 0.1


@pytest.mark.parametrize(
    "arguments",
    [
        (-1.0, OPENER, INSTEAD),
        (float("nan"), OPENER, INSTEAD),
        (2.0, (), INSTEAD),
        (2.0, (99,), ()),
    ],
)
def test_settings_out_of_range_are_refused(inner: Model, arguments: tuple) -> None:
    with pytest.raises(ValueError, match="guidance"):
        GuidedModel(inner, *arguments)


def test_what_a_guided_model_cannot_do_is_refused_by_name(guided: GuidedModel) -> None:
    session = guided.start()
    session.extend([0, 2])
    with pytest.raises(ValueError, match="lacks what opens"):
        session.forward(DraftTree.chain([8]))
    session.extend([5])
    with pytest.raises(ValueError, match="hidden"):
        session.forward(DraftTree.chain([8]), hidden=(1,))
    with pytest.raises(ValueError, match="rows"):
        guided.forward([RowsInput(session, [8], [3], np.ones((1, 1), bool))])
    with pytest.raises(ValueError, match="belong to the model"):
        guided.forward([PromptInput(guided.inner.start(), [1])])
    with pytest.raises(ValueError, match="embeddings"):
        session.extend((), embeddings=np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="needs a tree"):
        session.commit([0])
    assert guided.abilities == {"fork"}
    assert not getattr(guided, "makes_steps", False)


def test_the_context_leaves_room_for_the_other_words(inner: Model) -> None:
    assert isinstance(inner, NativeModel)
    most = inner.context_length
    assert most is not None
    assert GuidedModel(inner, 2.0, OPENER, (6, 6, 6)).context_length == most - 2
