"""Texts of a least length: no end token and no stop string before ``min_tokens``."""

import pytest
import torch

from draftwood import SamplingParams
from draftwood.drafters import DraftModel, MultiSource, Nothing, PromptLookup
from draftwood.methods import Method
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.shapes import StochasticBeam
from draftwood.testing import tiny_llama
from draftwood.text.builder import TextBuilder
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection, Traversal
from draftwood_torch.lean.model import LeanModel
from letters import letters

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
LENGTH = 24
DRAFT = LeanModel(tiny_llama(1, layers=1))
METHODS = {
    "plain": Method(Nothing(), Match(), "plain"),
    "lookup": Method(PromptLookup(), Match(), "lookup"),
    "auto": Method(MultiSource(), Match(), "auto"),
    "rsd-s": Method(DraftModel(DRAFT, StochasticBeam(3, 2)), Rejection(), "rsd-s"),
    "traversal": Method(DraftModel(DRAFT, StochasticBeam(3, 2)), Traversal(), "traversal"),
}


@pytest.fixture(scope="module", params=["native", "lean"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    """A model whose greedy text ends with its second token."""
    if request.param == "native" and not library.available():
        pytest.skip("needs the compiled library")
    made = tiny_llama(0, layers=3)
    with torch.no_grad():
        end = made.generate(torch.tensor([PROMPT]), max_new_tokens=2, do_sample=False)[0, -1].item()
    made.config.eos_token_id = made.generation_config.eos_token_id = end
    target = (NativeModel if request.param == "native" else LeanModel)(made)
    return LanguageModel(target, letters(), METHODS["plain"], "tiny")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("least", [0, 5, 17])
def test_greedy_texts_are_those_of_transformers(
    model: LanguageModel, method: str, least: int
) -> None:
    reference = tiny_llama(0, layers=3)
    end = next(iter(model.end_tokens))
    reference.generation_config.eos_token_id = end
    with torch.no_grad():
        wanted = reference.generate(
            torch.tensor([PROMPT]), max_new_tokens=LENGTH, min_new_tokens=least, do_sample=False
        )[0, len(PROMPT) :].tolist()
    made = model.with_method(METHODS[method]).generate(
        PROMPT, max_new_tokens=LENGTH, min_tokens=least
    )
    assert made.token_ids == wanted
    assert (len(wanted) == 2) is (least == 0)  # without the option it ends at once


@pytest.mark.parametrize("method", METHODS)
def test_drawn_texts_have_no_end_token_before(model: LanguageModel, method: str) -> None:
    write = model.with_method(METHODS[method]).generate
    bias = dict.fromkeys(model.end_tokens, 3.0)  # so that most texts end early without the option
    lengths = {}
    for least in (0, 12):
        params = SamplingParams(max_new_tokens=40, temperature=1.0, top_k=40, min_tokens=least)
        made = [write(PROMPT, params, seed=seed, logit_bias=bias) for seed in range(20)]
        lengths[least] = min(len(each.token_ids) for each in made)
    assert lengths[0] < 12 < lengths[12]


def test_stop_strings_before_are_part_of_the_text() -> None:
    tokens = letters().encode("abcabcabc")
    builder = TextBuilder(letters(), ["b"], min_tokens=3)
    assert builder.add(tokens) == 5
    assert builder.text == "abca"
    early = TextBuilder(letters(), ["b"])
    assert early.add(tokens) == 2
    at_the_bound = TextBuilder(letters(), ["b"], min_tokens=2)  # the second token does not count
    assert at_the_bound.add(tokens) == 5
    assert at_the_bound.text == "abca"


def test_what_excludes_each_other_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_tokens \(9\) must be at most max_new_tokens \(8\)"):
        SamplingParams(min_tokens=9, max_new_tokens=8)
    with pytest.raises(ValueError, match="leave min_tokens out"):
        SamplingParams(min_tokens=1, json_schema={"type": "object"})
