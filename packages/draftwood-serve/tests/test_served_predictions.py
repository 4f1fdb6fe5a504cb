"""Predicted outputs of OpenAI's chats: the same text, and what became of the prediction."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from local_server import NAME, RunningServer, running, save_tiny

PATH = "/v1/chat/completions"
SENT: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60}

NUMBER = {"name": "value", "schema": {"type": ["boolean", "number"]}}


def content(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_is_the_same_and_what_became_of_the_prediction_is_told(
    server: RunningServer, temperature: float
) -> None:
    sent = {**SENT, "temperature": temperature, "seed": 3}
    wanted = server.post(PATH, **sent)
    assert "completion_tokens_details" not in wanted["usage"]
    text = wanted["choices"][0]["message"]["content"]
    half = [{"type": "text", "text": text[:30]}, {"type": "text", "text": "zzzzzzzzzz"}]
    for given, least, most, length in (
        (text, 60, 60, 60),
        (half, 28, 32, 40),
        ("QQQQQQQQ", 0, 4, 8),
    ):
        found = server.post(PATH, prediction=content(given), **sent)
        assert found["choices"][0]["message"]["content"] == text
        told = found["usage"]["completion_tokens_details"]
        accepted = told["accepted_prediction_tokens"]
        assert least <= accepted <= most
        assert accepted + told["rejected_prediction_tokens"] == length
        chunks = server.stream(
            PATH, prediction=content(given), stream_options={"include_usage": True}, **sent
        )
        assert chunks[-1]["usage"] == found["usage"]
        assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks[:-1]) == (
            text
        )


def test_drafts_come_from_it(server: RunningServer) -> None:
    wanted = server.post(PATH, temperature=0.0, **SENT)
    text = wanted["choices"][0]["message"]["content"]
    found = server.post(PATH, temperature=0.0, prediction=content(text), **SENT)
    passes = [each["metrics"]["speculative_decoding"]["num_spec_steps"] for each in (wanted, found)]
    assert passes[1] < 0.7 * passes[0]


def test_openais_client_takes_and_tells_it(server: RunningServer) -> None:
    with OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": NAME, "seed": 1, **SENT}
        text = client.chat.completions.create(**asked).choices[0].message.content
        assert text is not None
        predicted: Any = content(text)
        found = client.chat.completions.create(prediction=predicted, **asked)
        assert found.choices[0].message.content == text
        assert found.usage is not None
        assert found.usage.completion_tokens_details is not None
        assert (found.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_in_one_batch_with_and_without_a_grammar(tmp_path: Path, temperature: float) -> None:
    """Each request has a seed, a prediction and perhaps a schema of its own."""
    sent = [
        {**SENT, "temperature": temperature, "seed": seed, **more}
        for seed in range(4)
        for more in ({}, {"response_format": {"type": "json_schema", "json_schema": NUMBER}})
    ]
    with running(save_tiny(tmp_path / "tiny", end="_"), max_batch=16) as server:

        def told(body: dict[str, Any]) -> tuple[str, int]:
            found = server.post(PATH, **body)
            details = found["usage"].get("completion_tokens_details", {})
            text = found["choices"][0]["message"]["content"]
            return text, details.get("accepted_prediction_tokens", 0)

        wanted = [told(body)[0] for body in sent]
        edited = [wanted, [text[:9] + "QQ" + text[9:] for text in wanted], wanted[1:] + wanted[:1]]
        asked = [
            {**body, "prediction": content(text)}
            for texts in edited
            for body, text in zip(sent, texts, strict=True)
        ]
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(told, asked))
    assert [text for text, _ in found] == wanted * len(edited)
    assert all(2 * count > len(text) for text, count in found[: len(sent)])
    assert temperature == 0 or len(set(wanted)) == len(wanted)  # a seed that is lost is seen


def test_several_answers_have_one_each(server: RunningServer) -> None:
    wanted = server.post(PATH, n=3, seed=2, **SENT)
    text = wanted["choices"][1]["message"]["content"]
    found = server.post(PATH, n=3, seed=2, prediction=content(text), **SENT)
    assert found["choices"] == wanted["choices"]
    told = found["usage"]["completion_tokens_details"]
    assert sum(told.values()) == 3 * 60
    assert told["accepted_prediction_tokens"] > 50


@pytest.mark.parametrize(
    ("prediction", "told"),
    [
        ("text", "prediction"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content"),
        (content("\ud800"), "the prediction holds a lone surrogate"),
    ],
)
def test_odd_predictions_are_refused(server: RunningServer, prediction: Any, told: str) -> None:
    assert told in server.refused(PATH, 400, prediction=prediction, **SENT)["message"]


def test_methods_and_endpoints_without_a_place_for_it_say_so(server: RunningServer) -> None:
    for method in ("plain", "lookup"):
        asked: Any = {"speculative": {"method": method}, "prediction": content("abc"), **SENT}
        error = server.refused(PATH, 400, **asked)
        assert "take the method auto or suffix" in error["message"]
    error = server.refused("/v1/completions", 400, prompt="go", prediction=content("abc"))
    assert error["message"] == "prediction is not supported by this server; leave it out"
    assert server.post(PATH, prediction=content(""), **SENT)["usage"]["completion_tokens"] == 60


def test_a_server_of_another_method_says_so(tiny: str) -> None:
    with running(tiny, method="lookup") as other:
        error = other.refused(PATH, 400, prediction=content("abc"), **SENT)
        assert "does not draft along a prediction" in error["message"]
