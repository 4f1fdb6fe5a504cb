"""A text depends on model, prompt, options, seed and method, and on nothing else."""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local_server import RunningServer, running, save_tiny, wait_for
from test_leaving import kill, send
from thinning import thinned

METHODS = ("auto", "lookup", "rsd-s", "plain", "layer-skip")
SCHEMA = {"type": ["boolean", "number"]}  # of which letters can write something
STYLES: tuple[dict[str, Any], ...] = (
    {
        "temperature": 1.0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "value", "schema": SCHEMA},
        },
    },
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.2},
    {"temperature": 1.0, "stop": ["ab", "q"]},
)


def requests() -> list[dict[str, Any]]:
    """Requests of all kinds, each with its own seed and length.

    Five methods and five styles meet in every way, most of them twice.
    """
    draw = random.Random(1)
    return [
        {
            "prompt": "".join(draw.choices("abcde", k=draw.randint(1, 90))),
            "seed": number,
            "max_tokens": draw.randint(5, 40),
            "speculative": {"method": METHODS[number % len(METHODS)]},
            **STYLES[number // len(METHODS) % len(STYLES)],
        }
        for number in range(40)
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", thinned(["float32", "bfloat16", "int8"], 3))
def test_texts_are_the_same_in_any_company(tmp_path: Path, dtype: str) -> None:
    wanted = requests()
    target = save_tiny(tmp_path / "target", layers=4, end="_")
    draft = save_tiny(tmp_path / "draft", layers=1, end="_")
    with running(target, draft_model=draft, dtype=dtype, max_batch=16) as server:
        ask = partial(answer, server)
        alone = [ask(body) for body in wanted]
        assert len({text for text, _ in alone}) > 30
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, wanted)) == alone
            assert list(pool.map(ask, wanted[::-1])) == alone[::-1]
            neighbours = beside_leavers(server, pool, wanted)
        assert neighbours == alone
        wait_for(server.idle)
        block = server.target.plain.model.pool.block_bytes
    # a cache that holds the longest text and little more: most texts give way on their way
    with running(
        target, draft_model=draft, dtype=dtype, max_batch=16, cache_memory=20 * block
    ) as server:
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(partial(answer, server), wanted)) == alone
        wait_for(server.idle)


def answer(server: RunningServer, body: dict[str, Any]) -> tuple[str, str]:
    """A text and why it ended; a request with a schema is asked as a chat."""
    if "response_format" not in body:
        (choice,) = server.post("/v1/completions", **body)["choices"]
        return choice["text"], choice["finish_reason"]
    others = {name: value for name, value in body.items() if name != "prompt"}
    messages = [{"role": "user", "content": body["prompt"]}]
    (choice,) = server.post("/v1/chat/completions", messages=messages, **others)["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def beside_leavers(
    server: RunningServer, pool: ThreadPoolExecutor, wanted: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """The answers while every other request is sent by someone who leaves."""
    found = []
    for body in wanted:
        other = {name: value for name, value in body.items() if name != "response_format"}
        leaver = send(server, **{**other, "max_tokens": 400, "stream": True, "seed": 99})
        asked = pool.submit(answer, server, body)
        leaver.recv(64)
        kill(leaver)
        found.append(asked.result(30))
    return found


def test_a_text_of_another_seed_is_seen_to_differ(server: RunningServer) -> None:
    """The comparison above can fail."""
    body = requests()[11]
    other = {**body, "seed": 1234}
    assert server.text(**body) != server.text(**other)
