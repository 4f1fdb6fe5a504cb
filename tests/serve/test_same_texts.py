"""A text depends on model, prompt, options, seed and method, and on nothing else."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from local_server import RunningServer, running, save_tiny, wait_for
from test_leaving import kill, send

METHODS = ("auto", "lookup", "rsd-s", "plain", "layer-skip")
STYLES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.2},
    {"temperature": 1.0, "stop": ["ab", "q"]},
)


def requests() -> list[dict[str, Any]]:
    """Requests of all kinds, each with its own seed and length.

    Five methods and four styles meet in every way, twice.
    """
    draw = random.Random(1)
    return [
        {
            "prompt": "".join(draw.choices("abcde", k=draw.randint(1, 90))),
            "seed": number,
            "max_tokens": draw.randint(5, 40),
            "speculative": {"method": METHODS[number % len(METHODS)]},
            **STYLES[number % len(STYLES)],
        }
        for number in range(40)
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_texts_are_the_same_in_any_company(tmp_path: Path, dtype: str) -> None:
    wanted = requests()
    target = save_tiny(tmp_path / "target", layers=4)
    draft = save_tiny(tmp_path / "draft", layers=1)
    with running(target, draft_model=draft, dtype=dtype, max_batch=16) as server:

        def ask(body: dict[str, Any]) -> tuple[str, str]:
            (choice,) = server.post("/v1/completions", **body)["choices"]
            return choice["text"], choice["finish_reason"]

        alone = [ask(body) for body in wanted]
        assert len({text for text, _ in alone}) > 30
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, wanted)) == alone
            assert list(pool.map(ask, wanted[::-1])) == alone[::-1]
            neighbours = beside_leavers(server, pool, wanted)
        assert neighbours == alone
        wait_for(server.idle)
        block = server.service.target.plain.model.pool.block_bytes
    # a cache that holds the longest text and little more: most texts give way on their way
    with running(
        target, draft_model=draft, dtype=dtype, max_batch=16, cache_memory=20 * block
    ) as server:
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, wanted)) == alone
        wait_for(server.idle)


def beside_leavers(
    server: RunningServer, pool: ThreadPoolExecutor, wanted: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """The answers while every other request is sent by someone who leaves."""
    found = []
    for body in wanted:
        leaver = send(server, **{**body, "max_tokens": 400, "stream": True, "seed": 99})
        asked = pool.submit(server.post, "/v1/completions", **body)
        leaver.recv(64)
        kill(leaver)
        (choice,) = asked.result(30)["choices"]
        found.append((choice["text"], choice["finish_reason"]))
    return found


def test_a_text_of_another_seed_is_seen_to_differ(server: RunningServer) -> None:
    """The comparison above can fail."""
    body = requests()[1]
    other = {**body, "seed": 1234}
    assert server.text(**body) != server.text(**other)
