"""Requests that are refused: one error in OpenAI's shape that names the field."""

import pytest

from draftwood_serve.errors import ApiError
from draftwood_serve.jobs import blaming_the_request
from local_server import RunningServer

CHAT = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "now"}}
BAD_TOOL = {
    "type": "function",
    "function": {
        "name": "a",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"b": {"type": "array", "uniqueItems": True}},
        },
    },
}
TEXT = {"prompt": "go", "max_tokens": 4}


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "warm"}, "temperature", "invalid_value"),
        ({"temperature": 1e-40}, None, None),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"999": 1}}, None, None),
        ({"rules": {"momentum": "much"}}, "rules", "invalid_value"),
        ({"rules": {"nosuch": 1}}, None, None),
        ({"rules": {"momentum": -1}}, None, None),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
        ({"chat_template_kwargs": {}}, "chat_template_kwargs", "unsupported_parameter"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 5}, "min_tokens", None),
        ({"speculative": {"methods": "auto"}}, "speculative", "unknown_parameter"),
        ({"speculative": {"method": "nosuch"}}, "speculative", None),
        ({"speculative": {"method": "rsd-s"}}, "speculative", None),
        ({"speculative": {"method": "typical"}}, "speculative", None),
        ({"speculative": {"method": "lookup", "budget": 2}}, "speculative", None),
        ({"speculative": {"tree": "4x3"}}, "speculative", None),
        ({"speculative": {"tree": 4}}, "speculative", "invalid_value"),
        ({"speculative": {"method": "recycling", "tree": "0,1"}}, "speculative", None),
        ({"speculative": {"method": "recycling", "tree": "4x3"}}, "speculative", None),
        ({"speculative": {"method": "recycling", "tree": "999999,9"}}, "speculative", None),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)
def test_a_bad_field_is_named(
    server: RunningServer, more: dict[str, object], param: str | None, code: str | None
) -> None:
    status = 404 if "model" in more else 400
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = server.refused(path, status, **{**body, **more})
        assert (error["param"] or "").startswith(param or "")
        assert error["code"] == code or code is None
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {**CHAT, "top_logprobs": 3}, "logprobs: true"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "functions": []}, "functions is not supported"),
        ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 5}, "differ"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "content": "4"}]},
            "template refuses",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "does not support images",
        ),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "later"}, "tool_choice"),
        ("/v1/chat/completions", {**CHAT, "tools": [TOOL, TOOL]}, "different names"),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [TOOL], "response_format": {"type": "json_object"}},
            "not both",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "schema is missing",
        ),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, "response_format"),
        ("/v1/completions", {"prompt": ""}, "empty"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "empty"),
        ("/v1/completions", {"prompt": [["a"]]}, "prompt"),
        ("/v1/completions", {"prompt": [99]}, "token ids outside"),
        ("/v1/completions", {"prompt": "a\ud800b"}, "surrogate"),
        ("/v1/completions", {**TEXT, "max_tokens": 0}, "echo"),
        ("/v1/completions", {**TEXT, "best_of": 4}, "best_of"),
        ("/v1/completions", {**TEXT, "suffix": "x"}, "suffix"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "x", "background": True}, "background"),
    ],
)
def test_a_bad_request_is_explained(
    server: RunningServer, path: str, body: dict[str, object], what: str
) -> None:
    assert what in server.refused(path, 400, **body)["message"]


def test_a_prompt_that_can_never_fit_has_a_code_of_its_own(server: RunningServer) -> None:
    error = server.refused("/v1/completions", 400, prompt="a" * 512)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    error = server.refused("/v1/responses", 400, input="a" * 600)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    messages = [{"role": "user", "content": "a" * 600}]
    error = server.refused("/v1/chat/completions", 400, messages=messages)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": 5}}},
            "response_format.json_schema.name",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {"type": "json_schema", "name": "a", "schema": {"type": "nosuch"}}
                },
            },
            "text.format",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [BAD_TOOL], "tool_choice": "required"},
            "tools",
        ),
    ],
)
def test_a_field_within_a_field_is_named(
    server: RunningServer, path: str, more: dict[str, object], param: str
) -> None:
    assert server.refused(path, 400, **more)["param"] == param


def test_null_is_nothing(server: RunningServer) -> None:
    given = {"temperature": None, "stream_options": {"include_usage": None}, "n": None}
    assert server.post("/v1/chat/completions", **CHAT, **given)["choices"]


def test_what_is_nested_too_deeply_is_the_requests_fault() -> None:
    def make() -> None:
        raise RecursionError

    with pytest.raises(ApiError) as found:
        blaming_the_request(make, "messages")
    assert (found.value.status, found.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "\\ud800": 1}',
        b'{"prompt": "a", "model": "\\udfff"}',
    ],
)
def test_broken_bodies_are_no_bugs(server: RunningServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        response = server.client.post(path, content=body, headers=headers)
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]


def test_fields_that_a_server_without_a_store_need_not_know_are_taken(
    server: RunningServer,
) -> None:
    more = {"user": "me", "metadata": {"a": "b"}, "store": False, "suffix": None, "stop": None}
    assert server.text(**TEXT, seed=1, **more) == server.text(**TEXT, seed=1)


def test_unknown_paths_and_methods_have_the_same_shape(server: RunningServer) -> None:
    for response, status in (
        (server.client.get("/v2/models"), 404),
        (server.client.get("/v1/completions"), 405),
        (server.client.get("/v1/models/other"), 404),
    ):
        assert response.status_code == status
        assert response.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', b'{"seed": ' + b"9" * 5000 + b"}", b"{"])
def test_what_is_no_json_is_one_error(server: RunningServer, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    error = server.client.post("/v1/completions", content=body, headers=headers).json()["error"]
    assert error["message"] == "the body is not JSON; send one JSON object"
    assert error["code"] == "invalid_value"


def test_what_can_be_got_has_a_head(server: RunningServer) -> None:
    for path in ("/", "/health", "/v1/models", "/metrics", "/api/version"):
        head, whole = server.client.head(path), server.client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert server.client.head("/v1/completions").status_code == 405


def test_models_and_health_are_told(server: RunningServer) -> None:
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny"
    assert card["max_model_len"] == 512
    assert server.client.get("/v1/models/tiny").json() == card
    assert server.client.get("/health").json() == {"status": "ok"}


PARTS = [("image_url", "images"), ("input_audio", "sounds"), ("file", "files")]


@pytest.mark.parametrize(("kind", "what"), PARTS)
def test_parts_that_are_no_text_are_refused_in_words(
    server: RunningServer, kind: str, what: str
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "data:"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    error = server.refused("/v1/chat/completions", 400, **body)
    assert error["message"].startswith(f"this server does not support {what}, ")
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages.0.content")


def test_images_of_responses_are_refused_in_words(server: RunningServer) -> None:
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
    error = server.refused("/v1/responses", 400, input=[item])
    assert "does not support images" in error["message"]
