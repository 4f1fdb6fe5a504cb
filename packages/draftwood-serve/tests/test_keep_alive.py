"""Ollama's `keep_alive`: models that leave when nobody has asked for them, and come again."""

import gc
import math
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

import draftwood
from draftwood_serve import thread
from draftwood_serve.access_log import ServerLog
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.schemas.ollama import KeepAlive
from local_server import NAME, RunningServer, running, wait_for

ASK: dict[str, Any] = {"model": NAME, "options": {"temperature": 0, "num_predict": 8}}
TEXT = {**ASK, "prompt": "why", "stream": False}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def own(tiny: str, lines: list[str]) -> Iterator[RunningServer]:
    """A server whose model may leave."""
    with running(tiny, method="plain", log=ServerLog(write=lines.append)) as server:
        yield server


def there(server: RunningServer) -> bool:
    return bool(server.client.get("/api/ps").json()["models"])


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        ("0s", 0.0),
        (300, 300.0),
        (1.5, 1.5),
        ("300", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
        (1e300, math.inf),
    ],
)
def test_durations_are_read_as_ollama_writes_them(given: Any, seconds: float) -> None:
    assert TypeAdapter(KeepAlive).validate_python(given) == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["abc", "", "5 m", "m", "5m3", "5x", True, [], {}, math.nan])
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="0 unloads the model, -1 keeps it"):
        TypeAdapter(KeepAlive).validate_python(given)


def test_long_digits_are_refused_at_once() -> None:
    since = time.perf_counter()
    with pytest.raises(ValidationError, match="0 unloads the model"):
        TypeAdapter(KeepAlive).validate_python("1" * 20_000)
    assert time.perf_counter() - since < 1


def test_a_model_leaves_behind_its_answer_and_comes_again(
    own: RunningServer, lines: list[str]
) -> None:
    model = weakref.ref(own.target.plain.model)
    first = own.post("/api/generate", keep_alive=0, **TEXT)
    assert first["done_reason"] == "length"
    wait_for(lambda: not there(own))
    wait_for(lambda: gc.collect() >= 0 and model() is None)  # whatever ran in this process before
    assert own.client.get("/health").status_code == 200
    assert own.metric("model_loaded") == 0
    assert own.post("/api/generate", **TEXT)["response"] == first["response"]
    assert there(own)
    assert own.metric("model_loads_total") == 2
    told = [line.split(" ", 1)[1] for line in lines if " has left" in line]
    assert told == [f"{NAME} has left, as it was to stay for 0 s"]


def test_an_empty_request_loads_it_or_lets_it_leave(own: RunningServer) -> None:
    ways = (("/api/generate", "response", {}), ("/api/chat", "message", {"messages": []}))
    for path, field, more in ways:
        told = own.post(path, model=NAME, keep_alive=0, **more)
        assert (told["done"], told["done_reason"]) == (True, "unload")
        assert field in told
        assert not there(own)
        assert own.post(path, model=NAME, keep_alive=0)["done_reason"] == "unload"  # once more
        told = own.post(path, model=NAME, keep_alive="5m", **more)
        assert (told["done"], told["done_reason"]) == (True, "load")
        assert there(own)
    assert own.post("/api/embeddings", model=NAME, keep_alive=0) == {"embedding": []}
    assert not there(own)
    assert own.post("/api/embeddings", model=NAME) == {"embedding": []}
    assert there(own)


def test_its_description_is_kept_once_it_has_left(own: RunningServer) -> None:
    def told() -> list[Any]:
        (card,) = own.client.get("/api/tags").json()["models"]
        page = own.client.get("/page.json").json()
        length = own.client.get("/v1/models").json()["data"][0]["max_model_len"]
        names = ("context_length", "method", "methods", "token_by_token")
        shown = own.post("/api/show", model=NAME)
        return [shown, card["size"], length, *(page[name] for name in names)]

    before = told()
    assert before[0]["capabilities"] == ["completion", "tools"]
    assert before[1] > 0
    assert before[2] == 512
    own.post("/api/generate", model=NAME, keep_alive=0)
    assert not there(own)
    assert told() == before


def test_it_leaves_once_it_was_idle_for_so_long(own: RunningServer) -> None:
    models = own.client.get("/api/ps").json()["models"]
    assert [each["expires_at"][:4] for each in models] == ["9999"]
    own.post("/api/generate", keep_alive="5m", **TEXT)
    (found,) = own.client.get("/api/ps").json()["models"]
    assert "2000" < found["expires_at"][:4] < "9000"
    own.post("/api/generate", keep_alive=0.5, **TEXT)
    assert own.post("/api/generate", **TEXT)["response"]  # which says nothing of it
    assert there(own)
    wait_for(lambda: not there(own), 5)
    own.post("/api/generate", keep_alive=0.1, **TEXT)
    own.post("/api/generate", keep_alive=-1, **TEXT)
    with pytest.raises(AssertionError, match="in time"):
        wait_for(lambda: not there(own), 0.5)


def test_it_leaves_behind_a_request_that_is_refused(own: RunningServer) -> None:
    own.post("/api/generate", model=NAME, keep_alive=0)
    wrong = {**TEXT, "prompt": "a" * 600, "raw": True, "keep_alive": 0.1}
    assert own.client.post("/api/generate", json=wrong).status_code == 400
    assert own.metric("model_loads_total") == 2  # it was loaded, and knew too few tokens then
    wait_for(lambda: not there(own))


def test_it_leaves_where_the_client_left_while_it_was_loaded(
    own: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.post("/api/generate", model=NAME, keep_alive=0)
    left = threading.Event()

    def loaded_later(*given: Any) -> LoadedTarget:
        assert left.wait(20)
        return LoadedTarget(*given)

    monkeypatch.setattr(thread, "LoadedTarget", loaded_later)
    with pytest.raises(httpx.ReadTimeout):
        own.client.post("/api/generate", json={**TEXT, "keep_alive": 0.1}, timeout=0.3)
    wait_for(lambda: own.ends() == {"cancelled": 1})
    left.set()
    wait_for(lambda: own.metric("model_loads_total") == 2)
    wait_for(lambda: not there(own))


def test_one_that_writes_stays_until_its_texts_end(endless: str) -> None:
    long = {"model": NAME, "prompt": "go", "max_tokens": 2000}
    with running(endless, method="plain") as server, ThreadPoolExecutor(1) as pool:
        text = pool.submit(server.client.post, "/v1/completions", json=long)
        wait_for(lambda: server.running_texts == 1)
        assert server.post("/api/chat", model=NAME, keep_alive=0)["done_reason"] == "unload"
        assert there(server)
        assert text.result(60).json()["usage"]["completion_tokens"] == 2000
        wait_for(lambda: not there(server))


def test_embeddings_let_it_leave_too(own: RunningServer, tiny: str) -> None:
    wanted = draftwood.load(tiny, method="plain").embed("why")
    told = own.post("/api/embed", model=NAME, input="why", keep_alive=0)
    wait_for(lambda: not there(own))
    assert np.allclose(told["embeddings"], wanted, atol=1e-6)
    told = own.post("/api/embeddings", model=f"{NAME}:latest", prompt="why", keep_alive="0s")
    wait_for(lambda: not there(own))
    assert np.allclose(told["embedding"], wanted[0], atol=1e-6)


def test_one_that_cannot_come_again_stays(own: RunningServer) -> None:
    model = own.service.models.first
    for name in ("learn", "tp", "replicas"):
        changed = {"learn": True, "tp": 2, "replicas": 2}[name]
        was = getattr(model.settings, name)
        object.__setattr__(model.settings, name, changed)
        try:
            own.post("/api/generate", keep_alive=0, **TEXT)
            response = own.client.post("/api/generate", json={"model": NAME, "keep_alive": 0})
            assert response.status_code == 400
            assert "leave keep_alive out" in response.json()["error"]
            assert own.post("/api/generate", model=NAME, keep_alive=0.1)["done_reason"] == "load"
            assert own.post("/api/embed", model=NAME, input="a", keep_alive=0)["embeddings"]
            assert model.keep == math.inf  # clients send it by default: it is ignored
            assert there(own)
        finally:
            object.__setattr__(model.settings, name, was)


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/api/generate", {"keep_alive": "abc"}, 400, "keep_alive: give seconds"),
        ("/api/chat", {"keep_alive": [1]}, 400, "keep_alive: give seconds"),
        ("/api/embed", {"input": "a", "keep_alive": "1 x"}, 400, "keep_alive: give seconds"),
        ("/api/embeddings", {"keep_alive": True}, 400, "keep_alive: give seconds"),
        ("/api/embeddings", {"prompt": 3}, 400, "prompt"),
        ("/api/embeddings", {"prompts": "a"}, 400, "there is no field prompts"),
        ("/api/embeddings", {"model": "other"}, 404, "model 'other' not found"),
        ("/api/generate", {"model": "other", "keep_alive": 0}, 404, "model 'other' not found"),
    ],
)
def test_bad_requests_are_told_in_one_line(
    server: RunningServer, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    response = server.client.post(path, json={"model": NAME, **body})
    assert response.status_code == status
    assert told in response.json()["error"]
    assert "\n" not in response.json()["error"]


@pytest.mark.skipif(find_spec("ollama") is None, reason="Ollama's client is not installed")
def test_its_own_client(own: RunningServer) -> None:
    import ollama

    with ollama.Client(host=own.address) as client:
        assert client.generate(model=NAME, keep_alive=0).done_reason == "unload"
        assert not client.ps().models
        assert client.generate(model=NAME, keep_alive="10m").done_reason == "load"
        (found,) = client.ps().models
        assert found.expires_at is not None
        assert found.expires_at.year < 9000
        vector = client.embeddings(model=NAME, prompt="why").embedding
        assert np.allclose(vector, client.embed(model=NAME, input="why").embeddings[0], atol=1e-6)
        said = [{"role": "user", "content": "a"}]
        assert client.chat(model=NAME, messages=said, keep_alive=0, **{"options": ASK["options"]})
        wait_for(lambda: not client.ps().models)
