"""Forms of texts by vLLM's names: a schema, an expression, a choice, a grammar."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from letters import LETTERS, letters
from local_server import TEMPLATE, RunningServer, running, save_tiny

TOKENS = [*LETTERS[:27], "_", *'Ċ<>/{}":,.Z']
PATHS = ("/v1/chat/completions", "/v1/completions")
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
FORMS: dict[str, tuple[Any, str]] = {
    "json": (SCHEMA, r'\{\s*"a"\s*:\s*"b"\s*\}'),
    "regex": ("(ab|ba)c", "(ab|ba)c"),
    "choice": (["ba", 'a"c'], '(ba|a"c)'),
    "grammar": ('start: "a" b+\nb: "bc"', "a(bc)+"),
}


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model begins every answer to a chat with a thought."""
    made = letters([*TOKENS, *(f"{each}{each}" for each in LETTERS[1:26])])
    folder = tmp_path_factory.mktemp("forms") / "former"
    saved = save_tiny(folder, end="Z", tokenizer=made, template=TEMPLATE + "<think>")
    with running(saved) as found:
        yield found


def test_a_server_has_read_the_vocabulary_before_the_first_form_is_asked_for(
    tmp_path: Path,
) -> None:
    """It keeps all threads waiting, and so every other text."""
    saved = save_tiny(tmp_path / "reader", end="Z", tokenizer=letters([*TOKENS]))
    with running(saved) as found:
        assert "_tokens" in vars(found.service.models.first.target.plain.grammars)


def asked(path: str) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "go"}]} if "chat" in path else {}
    return {**(prompt or {"prompt": "go"}), "max_tokens": 60, "temperature": 1, "seed": 3}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", FORMS)
def test_texts_have_the_form_that_is_asked_for(former: RunningServer, kind: str, path: str) -> None:
    given, wanted = FORMS[kind]
    found = former.post(path, **asked(path), n=8, structured_outputs={kind: given})
    for choice in found["choices"]:
        text = choice["message"]["content"] if "chat" in path else choice["text"]
        assert re.fullmatch(wanted, text) or choice["finish_reason"] == "length", text
        assert "reasoning_content" not in choice.get("message", {})
    assert any(each["finish_reason"] == "stop" for each in found["choices"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, "one of json, regex, choice and grammar"),
        ({"json": None}, "one of json, regex, choice and grammar"),
        ({"json": "null"}, "one of json, regex, choice and grammar"),
        ({"regex": "a", "choice": ["b"]}, "one of json, regex, choice and grammar"),
        ({"regex": "("}, "regular expression"),
        ({"grammar": "begin: 1"}, "Lark"),
        ({"json": "{"}, "no JSON"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"choice": []}, "at least 1"),
        ({"structural_tag": "{}"}, "no field structured_outputs.structural_tag"),
    ],
)
def test_forms_that_cannot_be_kept_are_refused(
    former: RunningServer, path: str, form: dict[str, Any], reason: str
) -> None:
    error = former.refused(path, 400, **asked(path), structured_outputs=form)
    assert reason in error["message"]
    assert error["param"].startswith("structured_outputs")


def test_a_choice_may_hold_any_character(former: RunningServer) -> None:
    form = {"choice": ["\u007f", "b"], "regex": None}  # the model can write the second alone
    found = former.post("/v1/completions", **asked("/v1/completions"), structured_outputs=form)
    assert found["choices"][0]["text"] == "b"


def test_a_text_has_one_form(former: RunningServer) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    for other in ({"response_format": {"type": "json_object"}}, {"tools": [tool]}):
        body = {**asked("chat"), **other, "structured_outputs": {"regex": "a"}}
        told = former.refused("/v1/chat/completions", 400, **body)["message"]
        assert told == f"give {next(iter(other))} or structured_outputs, not both"
