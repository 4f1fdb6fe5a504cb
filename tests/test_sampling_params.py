"""Options of a text are declared once; whoever takes them takes that declaration."""

import inspect
from dataclasses import fields
from fractions import Fraction
from typing import Any

import click
import numpy as np
import pytest
from transformers import GenerationConfig

from draftwood import LanguageModel, Options, Sampling, SamplingParams
from draftwood.cli.chat import chat
from draftwood.cli.generate import generate
from draftwood.sampling_params import OPTIONS, sampling_params
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.completions import CompletionBody
from draftwood_serve.schemas.sampling import CREATIVE, SERVED, read_options
from draftwood_torch.hook.options import OPTIONS as IN_TRANSFORMERS

DEFAULTS = {each.name: each.default for each in fields(SamplingParams)}
BAD = {
    "max_new_tokens": [0, 1.5, True, None],
    "context": [1, 2.5, True],
    "min_tokens": [-1, 0.5, 129],
    "temperature": [-0.1, 1e-40, 1e31, float("nan"), "warm", None],
    "top_k": [-1, 0.5],
    "top_p": [0.0, 1.1],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, float("inf")],
    "presence_penalty": [float("inf"), float("nan")],
    "frequency_penalty": [float("-inf")],
    "logit_bias": [{1.5: 0.0}, {1: float("inf")}, {1: 1e39}, 3],
    "rules": [{"nosuch": 1.0}, {"momentum": -1.0}, ["momentum"]],
    "seed": [0.5, "a"],
    "stop": ["", [""], 3],
    "ignore_eos": [1, None],
    "logprobs": [-1, True],
    "json_schema": ["[]", "{", 3],
    "grammar": [5],
    "raw": ["yes"],
    "prediction": [3, b"a"],
    "exact": [None],
    "salt": [5],
}


def test_every_option_has_values_that_are_refused() -> None:
    assert set(BAD) == set(OPTIONS)


@pytest.mark.parametrize(("name", "value"), [(name, bad) for name in BAD for bad in BAD[name]])
def test_a_bad_value_is_refused_by_the_option_s_name(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        SamplingParams(**{name: value})
    told = str(caught.value)
    assert name in told or (name == "stop" and "stop string" in told) or "schema" in told


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(1), Fraction(1, 2)])
def test_numbers_of_other_libraries_become_python_s(number: Any) -> None:
    made = SamplingParams(temperature=number, seed=np.int64(3), max_new_tokens=np.int32(4))
    assert type(made.temperature) is float
    assert made.temperature == number
    assert (type(made.seed), type(made.max_new_tokens)) == (int, int)
    assert Sampling(number).greedy is False
    assert Sampling(0 * number).greedy is True


def test_an_unknown_option_is_told_with_the_one_that_is_meant() -> None:
    with pytest.raises(TypeError, match="temprature is no option of a text; did you mean temp"):
        sampling_params(None, {"temprature": 1.0})
    with pytest.raises(TypeError, match=r"draftwood\.load takes those of a model"):
        sampling_params(None, {"tree": "4x3"})


def test_options_that_differ_from_their_defaults_are_given() -> None:
    assert SamplingParams().given() == []
    params = SamplingParams(stop=["x"], seed=0, top_k=4, max_new_tokens=DEFAULTS["max_new_tokens"])
    assert params.active_rules is not None  # what is remembered is no option
    assert set(params.given()) == {"stop", "seed", "top_k"}


def test_keywords_replace_fields() -> None:
    found = sampling_params(SamplingParams(temperature=0.5, seed=1), {"seed": 2})
    assert found == SamplingParams(temperature=0.5, seed=2)


@pytest.mark.parametrize("method", [LanguageModel.generate, LanguageModel.stream])
def test_signatures_show_every_option_with_its_default(method: Any) -> None:
    shown = inspect.signature(method).parameters
    assert {name: shown[name].default for name in DEFAULTS} == DEFAULTS


def test_no_class_has_defaults_of_its_own() -> None:
    for kind in (Sampling, Options):
        for each in fields(kind):
            if each.name in DEFAULTS and each.name != "logit_bias":
                assert each.default == DEFAULTS[each.name], each.name


@pytest.mark.parametrize("command", [generate, chat])
def test_commands_take_type_range_default_and_help(command: click.Command) -> None:
    taken = {each.name: each for each in command.params if isinstance(each, click.Option)}
    wanted = {name for name, each in OPTIONS.items() if "command line" in each.places}
    left_out = set() if command is generate else {"raw", "json_schema", "grammar", "prediction"}
    assert wanted - set(taken) == left_out
    for name in wanted - left_out:
        option, parameter = OPTIONS[name], taken[name]
        assert parameter.help == option.help
        if name != "max_new_tokens" and option.kind in ("number", "whole"):
            assert parameter.default == DEFAULTS[name]
        if option.least is not None:
            assert isinstance(parameter.type, (click.IntRange, click.FloatRange))
            assert (parameter.type.min, parameter.type.max) == (option.least, option.most)
            assert parameter.type.min_open == option.above


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_requests_take_what_is_served(body: Any) -> None:
    assert set(SERVED) <= set(body.model_fields)
    schema = body.model_json_schema()["properties"]
    for name in SERVED:
        assert schema[name]["anyOf"][0]["description"] == OPTIONS[name].help


def test_a_request_s_options_arrive() -> None:
    sent = {"temperature": 0.5, "top_k": -1, "logit_bias": {"3": 1.0}, "stop": ["a"], "seed": 4}
    sent["rules"] = {"momentum": 0.2}
    body = CompletionBody.model_validate({"prompt": "a", **sent})
    read = read_options(body)
    given = read.pop("rules")
    assert read == {"temperature": 0.5, "top_k": 0, "logit_bias": {3: 1.0}, "stop": ["a"]}
    assert given == {"momentum": 0.2}
    SamplingParams(**read)
    assert read_options(CompletionBody.model_validate({"prompt": "a"})) == CREATIVE


def test_names_in_transformers_exist() -> None:
    known = set(GenerationConfig().to_dict()) | {"stop_strings"}
    for option in OPTIONS.values():
        if option.transformers is not None:
            assert option.transformers in known
            assert IN_TRANSFORMERS[option.transformers].outcome == "right"
