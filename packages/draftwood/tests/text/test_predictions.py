"""A prediction changes how fast a text comes, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from draftwood import engine, methods
from draftwood.costs.budget import Budget
from draftwood.drafters import MultiSource
from draftwood.methods import Method
from draftwood.models.native import NativeModel
from draftwood.models.verified import PredictedText
from draftwood.native import library
from draftwood.sources import NGrams, Suffix
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.text.stream import Generation
from draftwood.verifiers import Match
from law_cases import Slipping
from letters import LETTERS, letters
from thinning import thinned

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

CHEAP = Budget(lambda nodes: 1.0 + 0.02 * nodes, per_draft_token=0.0, per_step=0.0)
DREAMS = "ThequickbrownfoxjumpsoverthelazydogandsleepsbehindtheoldstonewallB"
WANTED: dict[str, Any] = {"max_new_tokens": 120, "raw": True}


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    target = NativeModel(tiny_llama(0, layers=2, vocab=len(LETTERS), context=512))
    return LanguageModel(target, letters(), methods.build("plain", target), "tiny")


@pytest.fixture(scope="module")
def auto(plain: LanguageModel) -> LanguageModel:
    return plain.with_method(Method(MultiSource(budget=CHEAP), Match(), "auto"))


def edits(text: str) -> dict[str, str]:
    """Predictions of a text by how they differ from it."""
    third = len(text) // 3
    return {
        "itself": text,
        "with lines more": text[:third] + DREAMS + text[third:],
        "with lines less": text[:third] + text[third + 20 :],
        "with others": text[:third] + DREAMS[:15] + text[third + 15 :],
        "behind an opening": text[6:],
        "short": text[:1],
        "another": DREAMS,
    }


def share(found: Generation) -> float:
    """Share of the tokens that were accepted from the prediction."""
    counts = found.stats.sources.get("prediction")
    return 0.0 if counts is None else counts.accepted / len(found.token_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", edits(DREAMS))
def test_a_text_is_the_same_with_a_prediction(
    plain: LanguageModel, auto: LanguageModel, kind: str, temperature: float
) -> None:
    for seed in range(3):
        options = {**WANTED, "temperature": temperature, "seed": seed}
        wanted = plain.generate("Write.", **options)
        found = auto.generate("Write.", prediction=edits(wanted.text)[kind], **options)
        assert found.token_ids == wanted.token_ids
        if kind in ("itself", "with lines more", "with others", "behind an opening"):
            assert share(found) > 0.6
        elif kind == "another":
            assert share(found) < 0.2


def test_a_rule_that_is_wrong_gives_other_texts(plain: LanguageModel) -> None:
    """The negative control of the tests above."""
    slips = plain.with_method(Method(MultiSource(budget=CHEAP), Slipping(Match(), 0.3), "slips"))
    differ = 0
    for seed in range(6):
        options = {**WANTED, "temperature": 1.0, "seed": seed}
        wanted = plain.generate("Write.", **options)
        found = slips.generate("Write.", prediction=wanted.text, **options)
        differ += found.token_ids != wanted.token_ids
    assert differ >= 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_and_several_answers_have_one_prediction_each(
    plain: LanguageModel, auto: LanguageModel, temperature: float
) -> None:
    options = {**WANTED, "temperature": temperature, "seed": 5}
    prompts = ["Write.", "Read", "a"]
    wanted = [plain.generate(prompt, **options) for prompt in prompts]
    found = auto.generate(prompts, prediction=wanted[1].text, **options)
    assert [each.text for each in found] == [each.text for each in wanted]
    assert share(found[1]) > 0.6
    several = plain.generate("Write.", n=3, **options).answers
    answers = auto.generate("Write.", n=3, prediction=several[2].text, **options).answers
    assert [each.text for each in answers] == [each.text for each in several]
    assert share(answers[2]) > 0.6


@pytest.mark.parametrize("temperature", thinned([0.0, 1.0], 1))
def test_a_text_under_a_grammar_is_the_same(plain: LanguageModel, temperature: float) -> None:
    tokenizer = letters()
    tokenizer.eos_token = "_"
    plain = LanguageModel(plain.model, tokenizer, plain.method, "tiny")
    auto = plain.with_method(Method(MultiSource(budget=CHEAP), Match(), "auto"))
    options = {**WANTED, "temperature": temperature, "seed": 2}
    options["grammar"] = "start: WORD\nWORD: /[a-f]{90}/"
    wanted = plain.generate("Write.", **options)
    assert set(wanted.text) <= set("abcdef_")
    for kind, prediction in edits(wanted.text).items():
        found = auto.generate("Write.", prediction=prediction, **options)
        assert found.token_ids == wanted.token_ids, kind
        assert kind != "itself" or share(found) > 0.6
    prompts = ["Write.", "Read"]
    several = [plain.generate(prompt, **options).text for prompt in prompts]
    batch = auto.generate(prompts, prediction=several[1], **options)
    assert [each.text for each in batch] == several
    assert share(batch[1]) > 0.6


def test_whole_steps_of_the_library_draft_along_it(
    plain: LanguageModel, auto: LanguageModel
) -> None:
    """Long chains from the first token on, with a curve that pays for them."""
    wanted = plain.generate("Write.", **WANTED)
    found = auto.generate("Write.", prediction=wanted.text, **WANTED)
    assert found.stats.target_runs < 16
    assert max(found.stats.accepted_by_depth) > 0
    assert len(found.stats.accepted_by_depth) >= 16
    without = auto.generate("Write.", **WANTED)
    assert found.stats.target_runs < 0.6 * without.stats.target_runs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prediction_in_another_language_costs_next_to_nothing(
    auto: LanguageModel, temperature: float
) -> None:
    """By the curve that the trees are grown by, which is the same at every run."""
    costs = []
    for prediction in (None, DREAMS * 20, "zyx_012345 678." * 60):
        seconds = 0.0
        for seed in range(4):
            options = {**WANTED, "max_new_tokens": 300, "temperature": temperature, "seed": seed}
            with auto.stream("Write.", prediction=prediction, **options) as stream:
                "".join(stream)
            made = [step for step in stream.steps if step.tree is not None]
            seconds += sum(CHEAP.seconds(1 + step.drafted) for step in made)
        costs.append(seconds)
    assert costs[1] <= 1.03 * costs[0]
    assert costs[2] <= 1.03 * costs[0]


def test_what_became_of_it_is_counted(auto: LanguageModel) -> None:
    wanted = auto.generate("Write.", **WANTED)
    for prediction, least, most in (
        (wanted.text, 116, 120),
        (wanted.text[:40] + DREAMS, 38, 50),
        (DREAMS, 0, 12),
    ):
        stream = auto.stream("Write.", prediction=prediction, **WANTED)
        assert "".join(stream) == wanted.text
        told = stream.sequence.options.predicted
        assert told is not None
        assert least <= told.followed <= most


@pytest.mark.parametrize("length", [1, 2, 20])
def test_its_last_token_is_counted_too(auto: LanguageModel, length: int) -> None:
    options = {**WANTED, "max_new_tokens": length}
    stream = auto.stream("Write.", prediction=auto.generate("Write.", **WANTED).text, **options)
    "".join(stream)
    assert stream.sequence.followed == length


def test_a_rest_ends_once_the_prediction_is_followed(plain: LanguageModel) -> None:
    """A drafter for which nothing paid for long rests, until the text comes to what was given."""
    dear = Budget(lambda nodes: 1.0 + 0.3 * (nodes - 1), per_draft_token=0.0, per_step=0.2)
    auto = plain.with_method(Method(MultiSource((Suffix(), NGrams()), dear), Match(), "auto"))
    options = {**WANTED, "max_new_tokens": 400, "temperature": 1.0, "seed": 1}
    wanted = plain.generate("Write.", **options)
    found = auto.generate("Write.", prediction=wanted.text[200:], **options)
    assert found.token_ids == wanted.token_ids
    assert found.stats.sources["prediction"].accepted > 100


@pytest.mark.parametrize("method", ["plain", "lookup", "recycling"])
def test_methods_without_a_place_for_it_say_so(plain: LanguageModel, method: str) -> None:
    with pytest.raises(ValueError, match="take the method auto or suffix, or leave") as error:
        plain.with_method(method).generate("Write.", prediction="abc")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["auto", "suffix"])
def test_methods_with_a_place_for_it(plain: LanguageModel, method: str) -> None:
    wanted = plain.generate("Write.", **WANTED)
    found = plain.with_method(method, measure=False).generate(
        "Write.", prediction=wanted.text, **WANTED
    )
    assert found.text == wanted.text
    assert share(found) > 0.5


def test_odd_predictions(auto: LanguageModel) -> None:
    wanted = auto.generate("Write.", **WANTED)
    for empty in ("", None):
        assert auto.generate("Write.", prediction=empty, **WANTED).text == wanted.text
    with pytest.raises(TypeError, match="prediction must be a text"):
        auto.generate("Write.", prediction=3, **WANTED)
    with pytest.raises(ValueError, match="the prediction holds a lone surrogate"):
        auto.generate("Write.", prediction="a\ud800", **WANTED)
    with pytest.raises(ValueError, match="no tokens"):
        PredictedText([])
    stream = auto.stream("Write.", **WANTED)
    outside = replace(stream.sequence.options, predicted=PredictedText([9999]))
    sequence = stream.sequence
    with pytest.raises(ValueError, match="made for another model"):
        engine.Sequence(
            sequence.target, sequence.drafter, sequence.verifier, sequence.prompt, outside
        )
