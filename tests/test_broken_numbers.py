"""Numbers that are none: a request ends with an error that says where, and never with a token that
nobody chose.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from draftwood import methods
from draftwood.drafters import (
    Drafter,
    DraftModel,
    JacobiSampled,
    Nothing,
    PromptLookup,
    RacedJacobi,
)
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Options, Overlap, Overlapping, generate
from draftwood.models.native import NativeModel
from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.sampling import Sampler, Sampling
from draftwood.shapes import Independent, StochasticBeam, Widths
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal, Verifier
from draftwood_methods.drafters.stand import Stand
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_methods.verifiers.typical import Typical
from draftwood_torch.hook.processors import RowSampler, Scores
from draftwood_torch.lean.model import LeanModel
from tiny_heads import TINY, tiny_eagle

VOCAB = 700
BROKEN_AT = 5
# what 0 / 0 gives on x86
NEGATIVE_NAN = torch.tensor([-4194304], dtype=torch.int32).view(torch.float32).item()


@pytest.fixture(params=["in C++", "in NumPy"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in NumPy":
        drafters = ("drafters.draft_model", "drafters.draft_vocabulary")
        for module in ("native.rows", "sampling", *drafters):
            monkeypatch.setattr(f"draftwood.{module}.in_cpp", lambda rows: False)
    return request.param


def counting() -> Tensor:
    """After each token the next one, by far."""
    return torch.eye(VOCAB).roll(1, 1) * 40.0 + torch.randn(
        VOCAB, VOCAB, generator=torch.Generator().manual_seed(0)
    )


def row_with(value: float, *places: int) -> Tensor:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    row[list(places) or slice(None)] = value
    return row


BROKEN = {
    "all NaN": row_with(float("nan")),
    "the first NaN": row_with(float("nan"), 0),
    "one NaN": row_with(float("nan"), 337),
    "the last NaN": row_with(float("nan"), VOCAB - 1),
    "NaN of negative sign": row_with(NEGATIVE_NAN, 337),
    "all minus infinity": row_with(-torch.inf),
    "all plus infinity": row_with(torch.inf),
    "two at plus infinity": row_with(torch.inf, 3, 337),
}


def model_of(row: Tensor) -> TableModel:
    logits = counting()
    logits[BROKEN_AT] = row
    return TableModel(logits)


def of_processors(*processors: LogitsProcessor, greedy: bool) -> RowSampler:
    scores = Scores(torch.tensor([[0]]), LogitsProcessorList(processors))
    return RowSampler(scores, number=0, prompt=1, greedy=greedy)


SAMPLERS: dict[str, Sampler] = {
    "greedy": Sampling(),
    "greedy with penalties": Sampling(0.0, repetition_penalty=1.1),
    "temperature": Sampling(0.8),
    "top-k": Sampling(1.0, top_k=5),
    "top-p": Sampling(1.0, top_p=0.9),
    "min-p": Sampling(1.0, min_p=0.1),
    "bias": Sampling(1.0, logit_bias={7: 1.0, 350: -torch.inf}),
    "processors": of_processors(greedy=False),
}


def fails_at(
    place: int, model: TableModel, drafter: Drafter, verifier: Verifier, sampler: Sampler
) -> None:
    tokens: list[int] = []
    options = Options(sampler, 20, seed=0, exact=bool(verifier.exact_for))
    steps = generate(model, drafter, verifier, [0], options)
    with pytest.raises(ValueError, match=f"token {place} of the text cannot be chosen"):
        tokens.extend(token for step in steps for token in step.tokens)
    assert tokens == list(range(1, len(tokens) + 1))
    assert len(tokens) < place


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("row", BROKEN.values(), ids=BROKEN)
def test_broken_logits_end_the_request_where_they_stand(row: Tensor, sampler: Sampler) -> None:
    fails_at(BROKEN_AT + 1, model_of(row), Nothing(), Match(), sampler)


@pytest.mark.parametrize(
    "row", [BROKEN["all NaN"], BROKEN["one NaN"], BROKEN["all minus infinity"]]
)
@pytest.mark.parametrize("sampler", [Sampling(), Sampling(0.8), Sampling(1.0, top_p=0.9)])
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    [
        (Widths((1, 1, 1)), Rejection()),
        (Widths((1, 1, 1)), Block()),
        (Widths((2, 2, 1)), Traversal()),
        (Widths((2, 2), "greedy-plus-one"), GreedyPlusOne()),
        (Independent(3, 3), KSeq()),
        (StochasticBeam(2, 3), Match()),
        (Widths((1, 1)), Typical()),
        (PromptLookup(), Match()),
        (TokenRecycling(), Match()),
        (Stand(), Rejection()),
        (JacobiSampled(3), Rejection()),
        (RacedJacobi(3), Match()),
    ],
    ids=lambda part: part.name,
)
def test_guesses_neither_hide_nor_move_the_place(
    drafter, verifier: Verifier, sampler: Sampler, row: Tensor
) -> None:
    if not hasattr(drafter, "start"):
        drafter = DraftModel(TableModel(counting()), drafter)
    fails_at(BROKEN_AT + 1, model_of(row), drafter, verifier, sampler)


def test_the_prompts_run_counts_from_the_first_token() -> None:
    model = model_of(BROKEN["one NaN"])
    with pytest.raises(
        ValueError, match="token 1 of the text cannot be chosen: the model's logits hold NaN"
    ):
        next(generate(model, Nothing(), Match(), [1, BROKEN_AT], Options()))


def test_the_message_tells_the_model_from_the_options() -> None:
    healthy = TableModel(counting())
    banned = Sampling(0.0, logit_bias=dict.fromkeys(range(VOCAB), -torch.inf))
    with pytest.raises(ValueError, match="leaves no token to choose from"):
        next(generate(healthy, Nothing(), Match(), [1], Options(banned)))
    with pytest.raises(ValueError, match="all minus infinity: its weights are damaged"):
        next(
            generate(
                model_of(BROKEN["all minus infinity"]), Nothing(), Match(), [BROKEN_AT], Options()
            )
        )


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_ban_is_no_broken_number(sampler: Sampler) -> None:
    logits = counting()
    logits[:, 300:] = -torch.inf
    steps = list(
        generate(TableModel(logits), Nothing(), Match(), [0], Options(sampler, 20, seed=0))
    )
    assert [token for step in steps for token in step.tokens] == list(range(1, 21))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_banned_token_is_never_written(temperature: float) -> None:
    sampling = Sampling(temperature, logit_bias={4: -torch.inf})
    steps = list(
        generate(TableModel(counting()), Nothing(), Match(), [0], Options(sampling, 60, seed=0))
    )
    tokens = [token for step in steps for token in step.tokens]
    assert tokens[:3] == [1, 2, 3]
    assert 4 not in tokens


def test_one_token_at_plus_infinity_is_forced_by_a_processor_as_in_transformers() -> None:
    class Force(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            scores[:, 42] = torch.inf
            return scores

    options = Options(of_processors(Force(), greedy=True), 3)
    steps = list(generate(TableModel(counting()), Nothing(), Match(), [0], options))
    assert [token for step in steps for token in step.tokens] == [42, 42, 42]


@pytest.mark.parametrize("row", [BROKEN["all NaN"], BROKEN["one NaN"], BROKEN["all plus infinity"]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "verifier", [Rejection(), Traversal(), Block(), Match()], ids=lambda rule: rule.name
)
def test_a_text_goes_on_without_a_broken_draft_model(
    verifier: Verifier, temperature: float, row: Tensor
) -> None:
    drafter = DraftModel(model_of(row), Widths((1, 1)))
    options = Options(Sampling(temperature), 20, seed=0)
    with pytest.warns(UserWarning, match="draft-model says NaN or infinity"):
        steps = list(generate(TableModel(counting()), drafter, verifier, [0], options))
    assert [token for step in steps for token in step.tokens] == list(range(1, 21))
    drafted = [step.drafted for step in steps]
    broke = drafted.index(0, 1)
    assert any(drafted[:broke])
    assert not any(drafted[broke:])


HEADS = {
    **{name: TINY[name] for name in ("eagle", "lm", "medusa", "hydra", "ctc")},
    "eagle-rsd": TINY["eagle"],
    "lm-rsd": TINY["lm"],
    "ctc-rsd": TINY["ctc"],
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [*HEADS, "eagle-2-tree", "sequoia", "cascade", "horizontal"])
def test_a_text_goes_on_without_a_broken_drafter(
    method: str, temperature: float, value: float
) -> None:
    """The first weight overflows, so all that is said behind it does."""
    target, given = LeanModel(tiny_llama(0, layers=4)), dict[str, Any]()
    if method in HEADS:
        given["head"] = HEADS[method](target)
        overflow(given["head"].network, value)
    else:
        draft = tiny_llama(1)
        overflow(draft.model.layers, value)
        given["draft_model"] = LeanModel(draft)
    options = Options(Sampling(temperature), 20, seed=0)
    told = methods.build(method, target, **given)
    with pytest.warns(UserWarning, match="says NaN or infinity") as warned:
        steps = list(generate(target, told.drafter, told.verifier, [1, 5, 7], options))
    assert len([each for each in warned if "says NaN" in str(each.message)]) == 1
    assert not any(step.drafted for step in steps[2:])
    tokens = [token for step in steps for token in step.tokens]
    assert len(tokens) == 20
    if told.verifier == Match() or not temperature:
        plain = list(generate(target, Nothing(), Match(), [1, 5, 7], options))
        assert tokens == [token for step in plain for token in step.tokens]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("torn", ["states", "weights"])
@pytest.mark.parametrize("method", ["medusa", "hydra", "ctc", "ctc-rsd"])
def test_a_text_goes_on_without_a_native_head(
    method: str, torn: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overflow, or be given states that did."""
    target = NativeModel(tiny_llama(0, layers=4))
    head = HEADS[method.removesuffix("-rsd")](target)
    if torn == "weights":
        overflow(head.network, value)
    told = methods.build(method, target, head=head)
    if torn == "states":
        start = type(told.drafter).start
        monkeypatch.setattr(
            type(told.drafter), "start", lambda *given: of_torn_states(start(*given), value)
        )
    options = Options(Sampling(), 20, seed=0)
    with pytest.warns(UserWarning, match="says NaN or infinity") as warned:
        steps = list(generate(target, told.drafter, told.verifier, [1, 5, 7], options))
    assert len([each for each in warned if "says NaN" in str(each.message)]) == 1
    assert not any(step.drafted for step in steps[4:])
    assert any(step.drafted for step in steps) or torn == "weights"
    plain = list(generate(target, Nothing(), Match(), [1, 5, 7], options))
    assert [t for step in steps for t in step.tokens] == [t for s in plain for t in s.tokens]


def of_torn_states(session: DraftSession, value: float) -> DraftSession:
    """A session whose third update gives states that hold no numbers."""
    update, left = session.update, [2]

    def torn(verified: VerifiedTree) -> None:
        left[0] -= 1
        assert verified.output is not None
        hidden = verified.output.hidden
        if left[0] < 0:
            hidden = {layer: states * 0.0 + value for layer, states in hidden.items()}
        update(replace(verified, output=replace(verified.output, hidden=hidden)))

    session.update = torn  # type: ignore[method-assign]
    return session


def overflow(network: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        next(network.parameters()).fill_(value)


@pytest.mark.parametrize("overlap", [Overlap(pre_verify="always"), Overlap(pre_verify="never")])
@pytest.mark.filterwarnings("ignore:.* says NaN or infinity")
def test_a_broken_draft_model_beside_the_target_is_left_alone(overlap: Overlap) -> None:
    target = LeanModel(tiny_llama(0, layers=4))
    draft = tiny_llama(1)
    overflow(draft.model.layers, torch.nan)
    plain = DraftModel(LeanModel(draft), Widths((2, 1)))
    options = Options(Sampling(1.0), 20, seed=0)
    texts = []
    for drafter in (plain, Overlapping(plain, replace(overlap, target_threads=1))):
        steps = list(generate(target, drafter, Rejection(), [1, 5, 7], options))
        texts.append([token for step in steps for token in step.tokens])
        assert not any(step.drafted for step in steps[2:])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_head_leaves_the_other_sources_of_auto_as_they_are(temperature: float) -> None:
    """It is believed nothing."""
    target = NativeModel(tiny_llama(0, layers=4))
    found = []
    for value in (None, torch.nan):
        trained = None if value is None else tiny_eagle(target)
        if trained is not None:
            overflow(trained.network, torch.nan)
        told = methods.build("auto", target, head=trained)
        options = Options(Sampling(temperature), 60, seed=3)
        steps = list(generate(target, told.drafter, told.verifier, [1, 5, 7, 3, 5, 7], options))
        found.append(
            ([token for step in steps for token in step.tokens], sum(s.drafted for s in steps))
        )
    assert found[0][0] == found[1][0]
    assert found[1][1] > 0.5 * found[0][1] > 0


class NotInNumbers(DraftModel):
    """A drafter of somebody else, which grows its trees by itself."""

    def start(self, request: DraftRequest) -> DraftSession:
        draft = super().start(request)
        propose = draft.propose
        draft.propose = lambda *given: of_nan(propose(*given))  # type: ignore[method-assign]
        return draft


def of_nan(tree: DraftTree) -> DraftTree:
    return tree if tree.probs is None else replace(tree, probs=tree.probs * torch.nan)


def test_draft_tokens_that_were_drawn_from_nan_end_the_request() -> None:
    drafter = NotInNumbers(TableModel(counting()), Widths((1, 1)))
    options = Options(Sampling(1.0), 20, seed=0)
    with pytest.raises(ValueError, match=r"draft-model drafted token \d of the text"):
        list(generate(TableModel(counting()), drafter, Rejection(), [0], options))


def test_nothing_is_drawn_where_nothing_has_weight() -> None:
    for row in (
        np.zeros(40, np.float32),
        np.full(40, np.nan, np.float32),
        np.zeros(40),
    ):
        with pytest.raises(ValueError, match="nothing to draw"):
            Rng(0).draw(row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("vocab", "count"), [(40, 8), (VOCAB, 1), (5000, 1), (5000, 8), (20_000, 8), (20_000, 20)]
)
def test_of_equal_logits_the_first_is_likeliest(vocab: int, count: int, dtype: type) -> None:
    # nearly all tie
    rows = (torch.randn(9, vocab, generator=torch.Generator().manual_seed(0)) * 2).round()
    rows = torch.cat([rows, torch.zeros(1, vocab), -torch.zeros(1, vocab), rows[:1] - 50.0])
    rows = rows.numpy().astype(dtype)
    rows[-3, ::2] = -0.0
    expected = (-rows).argsort(-1, kind="stable")[:, :count]
    assert np.array_equal(topk(rows, count), expected)
    assert np.array_equal(topk(rows, 1)[:, 0], rows.argmax(-1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name", ["the first NaN", "one NaN", "the last NaN", "NaN of negative sign"]
)
def test_what_is_no_number_comes_first(name: str, dtype: type) -> None:
    row = BROKEN[name].numpy().astype(dtype)
    for count in (1, 4):
        assert np.isnan(row[topk(row[None], count)[0, 0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"temperature": value}, "temperature must be 0 .* 1e-30")
            for value in (1e-39, 1e-31, -0.5, 1e31, 1e300)
        ),
        *(
            ({"temperature": value}, "temperature must be")
            for value in (float("nan"), float("inf"), -float("inf"))
        ),
        *(
            ({"logit_bias": {3: value}}, "logit_bias of token 3 must be below 1e\\+38")
            for value in (torch.inf, torch.nan)
        ),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty"),
        *(({"repetition_penalty": value}, "from 1e-30 to 1e\\+30") for value in (1e-300, 1e300)),
        ({"frequency_penalty": -1e300}, "frequency_penalty must be a finite number from -1e\\+30"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", ["warm", None, True, [1.0], 1j])
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    ],
)
def test_what_is_no_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        Sampling(**{name: value})  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bias", [[1.0], {"7": 1.0}, {7: "1"}, {True: 1.0}])
def test_a_bias_of_another_kind_is_refused(bias: object) -> None:
    with pytest.raises(TypeError, match="logit_bias"):
        Sampling(logit_bias=bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e30])
def test_the_ends_of_the_range_draw_what_they_should(temperature: float) -> None:
    logits = counting()
    logits[:, 300:] = -torch.inf
    for sampling in (Sampling(temperature), Sampling(temperature, top_k=250)):
        steps = list(
            generate(TableModel(logits), Nothing(), Match(), [0], Options(sampling, 40, seed=0))
        )
        tokens = [token for step in steps for token in step.tokens]
        assert max(tokens) < 300
        assert (tokens == list(range(1, 41))) == (temperature < 1.0)
