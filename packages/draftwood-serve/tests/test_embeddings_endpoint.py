"""Embeddings by OpenAI's and Ollama's endpoints, beside texts that are written."""

import base64
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import httpx
import numpy as np
import pytest

import draftwood
from draftwood.engine import Limits
from draftwood.text.embeddings import EmbeddingTask
from draftwood.text.language_model import LanguageModel
from draftwood_serve.loaded import LoadedTarget
from local_server import NAME, RunningServer, running, wait_for

PATH = "/v1/embeddings"
TEXTS = ["why is the sky blue", "a", "because"]


@pytest.fixture(scope="module")
def lm(tiny: str) -> LanguageModel:
    return draftwood.load(tiny, method="plain")


def vectors(told: Any) -> np.ndarray:
    assert told["object"] == "list"
    assert told["model"] == NAME
    assert [each["index"] for each in told["data"]] == list(range(len(told["data"])))
    assert {each["object"] for each in told["data"]} == {"embedding"}
    return np.array([each["embedding"] for each in told["data"]], np.float32)


def test_a_text_a_list_and_token_ids_give_the_vectors_of_the_library(
    server: RunningServer, lm: LanguageModel
) -> None:
    wanted = lm.embed(TEXTS)
    told = server.post(PATH, model=NAME, input=TEXTS, user="someone")
    assert np.allclose(vectors(told), wanted, atol=1e-6)
    tokens = [lm.encode(each, raw=True) for each in TEXTS]
    count = sum(map(len, tokens))
    assert told["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert np.allclose(vectors(server.post(PATH, input=TEXTS[0])), wanted[:1], atol=1e-6)
    assert np.allclose(vectors(server.post(PATH, input=tokens)), wanted, atol=1e-6)
    assert np.allclose(vectors(server.post(PATH, input=tokens[2])), wanted[2:], atol=1e-6)
    last = vectors(server.post(PATH, input=TEXTS, pooling="last"))
    assert np.allclose(last, lm.embed(TEXTS, pooling="last"), atol=1e-6)
    assert np.abs(last - wanted)[0].max() > 0.01


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_server_answers_others_while_vectors_are_told(
    encoding: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    unit_vectors = EmbeddingTask.unit_vectors

    def waiting(task: EmbeddingTask, width: int | None = None) -> np.ndarray:
        begun.set()
        assert may_end.wait(30)
        return unit_vectors(task, width)

    monkeypatch.setattr(EmbeddingTask, "unit_vectors", waiting)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, PATH, input=TEXTS, encoding_format=encoding)
        assert begun.wait(30)
        assert httpx.get(f"{server.address}/health", timeout=10).status_code == 200
        may_end.set()
        assert len(asked.result()["data"]) == len(TEXTS)


def test_as_many_texts_as_openai_takes_are_embedded_and_more_are_refused_in_words(
    server: RunningServer,
) -> None:
    told = server.post(PATH, input=["a"] * 2048, encoding_format=None)
    assert len(told["data"]) == 2048
    error = server.refused(PATH, 400, input=["a"] * 2049)
    assert error["param"] == "input"
    assert "at most 2048 items" in error["message"]


def test_numbers_in_base64_are_the_same_and_fewer_dimensions_have_length_1(
    server: RunningServer, lm: LanguageModel
) -> None:
    told = server.post(PATH, input=TEXTS, encoding_format="base64")
    sent = [base64.b64decode(each["embedding"]) for each in told["data"]]
    assert np.allclose([np.frombuffer(each, "<f4") for each in sent], lm.embed(TEXTS), atol=1e-6)
    short = vectors(server.post(PATH, input=TEXTS, dimensions=5))
    part = lm.embed(TEXTS)[:, :5]
    assert np.allclose(short, part / np.linalg.norm(part, axis=1, keepdims=True), atol=1e-5)


def test_ollama_gets_them_in_its_form_and_cuts_long_texts(
    server: RunningServer, lm: LanguageModel
) -> None:
    long = "abc" * 300
    told = server.post("/api/embed", model=NAME, input=[*TEXTS, long], keep_alive="5m")
    cut = lm.encode(long, raw=True)[: lm.model.context_length]
    wanted = np.concatenate([lm.embed(TEXTS), lm.embed([cut])])
    assert np.allclose(np.array(told["embeddings"]), wanted, atol=1e-6)
    assert told["prompt_eval_count"] == sum(len(lm.encode(e, raw=True)) for e in TEXTS) + len(cut)
    assert told["total_duration"] > 0
    one = server.post("/api/embed", model=NAME, input="a", dimensions=4)["embeddings"]
    assert np.array(one).shape == (1, 4)
    response = server.client.post(
        "/api/embed", json={"model": NAME, "input": long, "truncate": False}
    )
    assert response.status_code == 400
    assert "shorten it" in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"input": ""}, 400, "should have at least 1 character"),
        ({"input": []}, 400, "should have at least 1 item"),
        ({"input": ["a", ""]}, 400, "should have at least 1 character"),
        ({"input": [[]]}, 400, "text 0 is empty"),
        ({"input": [10**6]}, 400, "token ids must be"),
        ({"input": "a" * 600}, 400, "your prompt has 600 tokens; shorten it to at most 512"),
        ({"input": "\ud800"}, 400, "unable to parse"),
        ({"input": "a", "dimensions": 10**4}, 400, "dimensions is at most"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "pooling": "max"}, 400, "pooling"),
        ({"input": "a", "inputs": "b"}, 400, "there is no field inputs"),
        ({"input": "a", "model": "other"}, 404, "is not served"),
        ({"model": NAME}, 400, "input"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    server: RunningServer, body: dict[str, Any], status: int, told: str
) -> None:
    message = server.refused(PATH, status, **body)["message"]
    assert told in message
    assert "\n" not in message
    assert server.service.models.first.running.call(lambda target: True).result(5)


def test_texts_stay_the_same_while_others_are_embedded(tiny: str, lm: LanguageModel) -> None:
    how: dict[str, Any] = {"max_tokens": 120, "temperature": 1.0, "seed": 3}
    with running(tiny) as server:
        wanted = server.text("hello", **how)
        embedded, over = list[np.ndarray](), threading.Event()

        def embed() -> None:
            while not over.is_set():
                embedded.append(vectors(server.post(PATH, input=TEXTS * 20)))

        threads = [threading.Thread(target=embed) for _ in range(3)]
        for each in threads:
            each.start()
        try:
            texts = [server.text("hello", **how) for _ in range(3)]
        finally:
            over.set()
            for each in threads:
                each.join()
        assert texts == [wanted] * 3
        assert len(embedded) >= 3
        assert all(np.allclose(each[:3], lm.embed(TEXTS), atol=1e-6) for each in embedded)
        wait_for(server.idle)


def test_a_pass_is_short_while_a_text_waits_for_it(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced = Limits(2).paced(lambda rows: rows * 1e-3, 0.04)
    monkeypatch.setattr(LoadedTarget, "limits", paced)
    with running(endless, method="plain") as server:
        thread = server.service.models.first.running

        def rows(_: object) -> int:
            return thread.rows_beside(512, 0)

        assert thread.call(rows).result(5) == 512
        body = {"prompt": "go", "max_tokens": 100_000, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # kept, or the client leaves
            next(lines)
            assert thread.call(rows).result(5) == 39
        wait_for(server.idle)


def test_of_too_many_one_is_sent_away(tiny: str) -> None:
    with running(tiny, max_queue=0, max_batch=1) as server:
        hold, statuses = threading.Event(), list[int]()
        server.service.models.first.running.call(lambda target: hold.wait(20))

        def ask() -> None:
            statuses.append(server.client.post(PATH, json={"input": "a"}).status_code)
            hold.set()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert statuses == [429, 200]


def test_they_are_counted_by_their_ends_with_their_tokens(tiny: str) -> None:
    two_passes: dict[str, Any] = {"input": ["a" * 300, "b" * 300]}
    with running(tiny, request_timeout=0.6) as server:
        server.post(PATH, input=TEXTS)
        assert server.ends() == {"finished": 1}
        assert server.metric("prompt_tokens_total") == sum(map(len, TEXTS))
        server.refused(PATH, 400, input="a", dimensions=10**4)  # at fault, as for texts
        thread = server.service.models.first.running
        thread.call(lambda target: time.sleep(0.8))
        server.refused(PATH, 504, **two_passes)
        assert server.ends() == {"finished": 1, "failed": 1}
        thread.call(lambda target: time.sleep(0.4))
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(PATH, json=two_passes, timeout=0.2)
        wait_for(lambda: server.ends() == {"finished": 1, "failed": 1, "cancelled": 1})
        assert server.metric("prompt_tokens_total") == sum(map(len, TEXTS)) + 1200


@pytest.mark.skipif(find_spec("openai") is None, reason="OpenAI's client is not installed")
def test_openais_client_reads_them(server: RunningServer, lm: LanguageModel) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
        told = client.embeddings.create(model=NAME, input=TEXTS)  # asks for base64 by itself
    assert np.allclose([each.embedding for each in told.data], lm.embed(TEXTS), atol=1e-6)
    assert told.usage.prompt_tokens > 0


@pytest.mark.skipif(find_spec("ollama") is None, reason="Ollama's client is not installed")
def test_ollamas_client_reads_them(server: RunningServer, lm: LanguageModel) -> None:
    import ollama

    with ollama.Client(host=server.address) as client:
        told = client.embed(model=NAME, input=TEXTS)
    assert np.allclose(told.embeddings, lm.embed(TEXTS), atol=1e-6)
