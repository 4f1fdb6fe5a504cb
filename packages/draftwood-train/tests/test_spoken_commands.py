"""Sentences out of templates by intent."""

import json
import random

import pytest

from draftwood_train.data.everyday.commands import MOST, sentences


def told(*templates: str) -> str:
    return json.dumps(
        {
            "intents": {"Try": {"data": [{"sentences": [each]} for each in templates]}},
            "lists": {
                "size": {"range": {"from": 1, "to": 3}},
                "colour": {"values": [{"in": "(deep|pale) red", "out": "red"}]},
                "plain": {"values": ["full speed"]},
                "open": {"wildcard": True},
            },
            "expansion_rules": {"the": "(the|my)", "again": "<again> once more"},
        }
    )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("(turn|switch) on [all] <the> light[s]", "Turn on the lights"),
        ("make <the> lamp {colour:c}", "Make the lamp deep red"),
        ("go at {plain} (then (stop|halt)|) now", "Go at full speed then stop now"),
    ],
)
def test_the_first_alternatives_are_said(template: str, said: str) -> None:
    assert list(sentences(told(template))) == [("Try", said)]


def test_numbers_are_more_than_one() -> None:
    ((_, said),) = sentences(told("wait for {size} hour[s]"))
    assert said in ("Wait for 2 hours", "Wait for 3 hours")


@pytest.mark.parametrize(
    "template",
    ["say {open} in here", "call {nobody} in here", "do <nothing> in here", "<again>", "too short"]
    + ["words (in;any) order here"],
)
def test_templates_that_cannot_be_said_give_nothing(template: str) -> None:
    assert list(sentences(told(template))) == []


def test_an_intent_gives_a_few_sentences_the_same_each_time() -> None:
    many = told(*(f"tell me number {n} please" for n in range(40)))
    random.seed(1)
    found = list(sentences(many))
    random.seed(2)
    assert found == list(sentences(many))
    assert len({said for _, said in found}) == MOST
