"""Several models in one server: loaded when asked for, left when another one needs the room."""

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draftwood.storage import memory
from draftwood_serve.access_log import ServerLog
from draftwood_serve.service import TextService
from draftwood_serve.settings import OF_ONE, ServeSettings, of_each
from local_server import NAME, RunningServer, running, save_tiny, wait_for

SECOND, THIRD = "second", "third"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models that differ from the first, and from each other, by their layers."""
    home = tmp_path_factory.mktemp("others")
    return [
        save_tiny(home / name, layers=3 - 2 * place) for place, name in enumerate((SECOND, THIRD))
    ]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def several(tiny: str, others: list[str], lines: list[str]) -> Iterator[RunningServer]:
    log = ServerLog(write=lines.append)
    with running(tiny, others=others, log=log, method="plain") as server:
        yield server


def loaded(server: RunningServer) -> list[str]:
    cards = server.client.get("/v1/models").json()["data"]
    return [card["id"] for card in cards if card["loaded"]]


def write(server: RunningServer, model: str | None, **more: Any) -> str:
    named = {} if model is None else {"model": model}
    return server.text("abc", max_tokens=12, seed=3, **named, **more)


def test_a_model_is_loaded_when_it_is_asked_for_and_writes_as_alone(
    several: RunningServer, others: list[str], lines: list[str]
) -> None:
    assert loaded(several) == [NAME]
    texts = {name: write(several, name) for name in (NAME, SECOND, THIRD)}
    assert write(several, None) == texts[NAME]
    assert loaded(several) == [NAME, SECOND, THIRD]
    assert len(set(texts.values())) == 3
    with running(others[0], method="plain") as alone:
        assert write(alone, None) == texts[SECOND]
    assert [line.split()[1] for line in lines if "is loaded" in line] == [SECOND, THIRD]
    assert several.metric("generation_tokens_total", SECOND) == 12
    assert several.metric("model_loads_total", THIRD) == 1


def test_a_name_that_is_not_served_names_those_that_are(several: RunningServer) -> None:
    error = several.refused("/v1/completions", 404, prompt="a", model="fourth")
    assert error["code"] == "model_not_found"
    assert f"{NAME}, {SECOND}, {THIRD}" in error["message"]
    assert several.client.get(f"/v1/models/{SECOND}").json()["max_model_len"] is None
    assert several.client.get("/v1/models/fourth").status_code == 404


def test_ollama_lists_all_and_tells_which_are_in_memory(several: RunningServer) -> None:
    def names(path: str) -> list[str]:
        return [each["name"] for each in several.client.get(path).json()["models"]]

    assert names("/api/tags") == [f"{name}:latest" for name in (NAME, SECOND, THIRD)]
    assert names("/api/ps") == [f"{NAME}:latest"]
    shown = several.post("/api/show", model=SECOND)
    assert shown["capabilities"] == ["completion"]
    told = several.post("/api/generate", model=f"{SECOND}:latest", prompt="", stream=False)
    assert told["done_reason"] == "load"
    assert names("/api/ps") == [f"{NAME}:latest", f"{SECOND}:latest"]
    assert "draftwood.block_count" in several.post("/api/show", model=SECOND)["model_info"]


def test_the_page_is_told_of_each_model(several: RunningServer) -> None:
    told = several.client.get("/page.json", params={"model": SECOND}).json()
    assert told["model"] == SECOND
    assert told["models"][0] == {"name": NAME, "loaded": True}
    assert told["models"][1] == {"name": SECOND, "loaded": False}
    assert {"plain", "auto"} <= {method["name"] for method in told["methods"]}
    assert several.client.get("/page.json", params={"model": "fourth"}).status_code == 404


def test_the_one_that_was_idle_for_the_longest_leaves(tiny: str, others: list[str]) -> None:
    with running(tiny, others=others, max_models=2, method="plain") as server:
        first = write(server, NAME)
        write(server, SECOND)
        write(server, NAME)
        write(server, THIRD)
        assert loaded(server) == [NAME, THIRD]
        write(server, SECOND)
        assert loaded(server) == [SECOND, THIRD]
        assert write(server, NAME) == first
        assert server.metric("model_loads_total", NAME) == 2
        assert server.metric("model_loaded", SECOND) + server.metric("model_loaded", THIRD) == 1
        assert server.client.get("/health").status_code == 200


def test_a_model_that_leaves_gives_its_memory_back(tiny: str, others: list[str]) -> None:
    with running(tiny, others=others[:1], max_models=1) as server:
        write(server, NAME)
        model = weakref.ref(server.target.plain.model)
        assert model() is not None
        write(server, SECOND)
        assert model() is None


def streaming(server: RunningServer, model: str, tokens: int, done: list[str]) -> threading.Thread:
    """A text that is being written when this returns."""
    begun = threading.Event()

    def run() -> None:
        body = {"model": model, "prompt": "abc", "max_tokens": tokens, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                begun.set()
                if line == "data: [DONE]":
                    done.append(model)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(20)
    return thread


def test_one_that_writes_stays_until_its_texts_end(
    endless: str, others: list[str], lines: list[str]
) -> None:
    done: list[str] = []
    log = ServerLog(write=lines.append)
    with running(endless, others=others[:1], max_models=1, method="plain", log=log) as server:
        thread = streaming(server, NAME, 3000, done)
        with ThreadPoolExecutor(2) as pool:
            second = pool.submit(write, server, SECOND)
            wait_for(lambda: server.service.models.first.leaves)
            later = pool.submit(write, server, NAME)  # behind the one that waits
            assert not done
            assert second.result(120)
            assert done == [NAME]
            assert later.result(120)
        thread.join(10)
    told = [line for line in lines if "has left" in line]
    assert [line.split()[1] for line in told] == [NAME, SECOND]


def test_one_that_leaves_while_its_model_waits_frees_the_line(
    endless: str, others: list[str]
) -> None:
    with running(endless, others=others[:1], max_models=1, method="plain") as server:
        thread = streaming(server, NAME, 3000, [])
        with pytest.raises(Exception, match="timed out"):
            server.client.post(
                "/v1/completions", json={"model": SECOND, "prompt": "a"}, timeout=0.3
            )
        wait_for(lambda: not server.service.models.first.leaves, 5)
        wait_for(lambda: server.ends(SECOND) == {"cancelled": 1})
        thread.join(30)
        assert loaded(server) == [NAME]
        assert write(server, SECOND)


def test_the_time_limit_counts_the_wait_for_room(endless: str, others: list[str]) -> None:
    how: dict[str, Any] = {"max_models": 1, "method": "plain", "request_timeout": 0.6}
    body = {"prompt": "a", "max_tokens": 100_000}
    with running(endless, others=others[:1], **how) as server, ThreadPoolExecutor(1) as pool:
        long = pool.submit(server.client.post, "/v1/completions", json=body)
        wait_for(lambda: server.running_texts == 1)
        error = server.refused("/v1/completions", 504, model=SECOND, prompt="a")
        assert "found no room" in error["message"]
        assert server.ends(SECOND) == {"failed": 1}
        assert long.result(20).status_code == 504


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Sets what the system says is free."""
    return lambda free: monkeypatch.setattr(memory, "available_memory", free)


def test_memory_that_is_short_makes_idle_ones_leave(
    several: RunningServer, room: Callable[[Callable[[], int]], None]
) -> None:
    models = several.service.models
    room(lambda: 10**9 if len(models.loaded) < 2 else 0)
    for name in (SECOND, THIRD, NAME):
        assert write(several, name)
        assert len(models.loaded) == 2
    assert loaded(several) == [NAME, THIRD]


def test_one_that_can_never_fit_is_refused_and_nothing_leaves(
    several: RunningServer, room: Callable[[Callable[[], int]], None]
) -> None:
    room(lambda: -(10**9))
    for model, path in ((SECOND, "/v1/completions"), (THIRD, "/v1/completions")):
        error = several.refused(path, 503, model=model, prompt="a")
        assert error["code"] == "insufficient_memory"
        assert f"the model '{model}' needs 0.00 GB of memory" in error["message"]
        assert "smaller model" in error["message"]
    assert loaded(several) == [NAME]
    room(lambda: 10**9)
    assert write(several, SECOND)  # it is tried again


def test_one_that_is_damaged_is_told_and_the_others_go_on(tiny: str, tmp_path: Path) -> None:
    damaged = save_tiny(tmp_path / "damaged")
    (weights,) = Path(damaged).glob("*.safetensors")
    with running(tiny, others=[damaged], method="plain") as server:
        weights.write_bytes(weights.read_bytes()[:1000])
        error = server.refused("/v1/completions", 503, model="damaged", prompt="a")
        assert error["code"] == "model_not_loaded"
        assert error["message"].startswith("the model 'damaged' could not be loaded: ")
        assert write(server, NAME)
        assert server.client.get("/health").status_code == 200


def test_models_write_at_the_same_time_what_they_write_alone(several: RunningServer) -> None:
    names = (NAME, SECOND, THIRD)
    alone = {name: write(several, name, n=1) for name in names}
    with ThreadPoolExecutor(12) as pool:
        asked = [(name, pool.submit(write, several, name)) for name in names * 4]
        assert all(text.result(60) == alone[name] for name, text in asked)


def test_a_server_stops_while_a_model_waits_for_room(endless: str, others: list[str]) -> None:
    bodies = [{"prompt": "a", "max_tokens": 100_000}, {"prompt": "a", "model": SECOND}]
    how: dict[str, Any] = {"max_models": 1, "method": "plain"}
    with running(endless, others=others[:1], **how) as server, ThreadPoolExecutor(2) as pool:
        long = pool.submit(server.client.post, "/v1/completions", json=bodies[0])
        wait_for(lambda: server.running_texts == 1)
        waits = pool.submit(server.client.post, "/v1/completions", json=bodies[1])
        wait_for(lambda: server.service.models.first.leaves)
        server.server.handle_exit(15, None)
        for asked in (long, waits):
            assert asked.result(20).status_code == 503
            assert asked.result().json()["error"]["code"] == "stopping"


def test_two_models_of_one_name_are_refused(tiny: str) -> None:
    made = ServeSettings(model=tiny)
    with pytest.raises(ValueError, match="--served-model-name"):
        TextService(made, [made])


def test_a_name_that_is_given_twice_is_one(tiny: str) -> None:
    made = ServeSettings(model=tiny, served_names=("b", "a", "b"))
    assert TextService(made).models.names == ["b", "a"]


def test_settings_are_of_the_first_model_unless_they_name_another() -> None:
    given = {
        "draft_model": ("x", "b=y", "c=z"),
        "served_names": ("b=short",),
        "datastore": None,
        "adapter": "b=fine-tuned",
        "method": ("b=suffix",),
        "tree": (),
    }
    first, second = of_each(given, ["a", "b"])
    assert first == {
        "model": "a",
        "draft_model": ("x", "c=z"),
        "served_names": (),
        "datastore": None,
        "adapter": None,
        "method": None,
        "tree": None,
    }
    assert second == {
        "model": "b",
        "draft_model": ("y",),
        "served_names": ("short",),
        "datastore": None,
        "adapter": "fine-tuned",
        "method": "suffix",
        "tree": None,
    }


def test_method_and_tree_are_of_all_models_unless_they_name_one() -> None:
    bare = {**OF_ONE, "method": ("a=plain", "suffix", "c=lookup"), "tree": ("4",)}
    told = [(each["method"], each["tree"]) for each in of_each(bare, ["a", "b", "c"])]
    assert told == [("plain", "4"), ("suffix", "4"), ("lookup", "4")]
    for wrong in (("plain", "auto"), ("a=plain", "a=auto")):
        with pytest.raises(ValueError, match=r"says plain and auto for (all models|a); "):
            of_each({**bare, "method": wrong}, ["a", "b"])


def test_the_context_is_bounded(tiny: str) -> None:
    with running(tiny, context=40) as server:
        assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 40
        whole = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
        assert whole["usage"]["total_tokens"] == 40
        assert whole["choices"][0]["finish_reason"] == "length"
        error = server.refused("/v1/completions", 400, prompt="a" * 40)
        assert error["code"] == "context_length_exceeded"
        assert "40 tokens" in error["message"]
    with pytest.raises(ValueError, match="context must be at least 2"):
        ServeSettings(context=1)


def test_requests_of_one_model_do_not_wait_for_those_of_another(
    endless: str, others: list[str]
) -> None:
    how: dict[str, Any] = {"max_batch": 1, "max_queue": 0, "method": "plain"}
    with running(endless, others=others[:1], **how) as server:
        thread = streaming(server, NAME, 2000, [])
        assert server.refused("/v1/completions", 429, prompt="a")["code"] == "rate_limit_exceeded"
        assert write(server, SECOND)
        assert thread.is_alive()
        thread.join(30)
