"""Prefixes, and a cache that is full, as clients see them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from draftwood.models.model import CHUNK
from local_server import running, save_tiny

PROMPT = "abcdefgh" * 12


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_the_usage_tells_what_was_in_the_cache(tiny: str) -> None:
    with running(tiny) as server:
        body = {"prompt": PROMPT, "max_tokens": 8, "seed": 1, "temperature": 1.0}
        first, again = (server.post("/v1/completions", **body) for _ in range(2))
        assert cached(first) == 0
        assert cached(again) == again["usage"]["prompt_tokens"] - 1
        assert first["choices"] == again["choices"]
        scored = server.post("/v1/completions", **body, echo=True, logprobs=1)
        assert cached(scored) == 0  # logits of the whole prompt are wanted
        assert scored["choices"][0]["text"] == PROMPT + first["choices"][0]["text"]


def test_a_prompt_of_several_texts_is_counted_once(tiny: str) -> None:
    with running(tiny, max_batch=2) as server:
        body = {"prompt": PROMPT, "max_tokens": 4, "n": 8}
        assert cached(server.post("/v1/completions", **body)) == 0
        again = server.post("/v1/completions", **{**body, "prompt": [PROMPT] * 2})
        assert cached(again) == again["usage"]["prompt_tokens"] - 2


def test_keys_share_no_prefix(tiny: str) -> None:
    with running(tiny, api_keys=("one", "two")) as server:

        def ask(key: str) -> int:
            answer = httpx.post(
                f"{server.address}/v1/completions",
                json={"prompt": PROMPT, "max_tokens": 2},
                headers={"authorization": f"Bearer {key}"},
                timeout=60,
            )
            return cached(answer.raise_for_status().json())

        assert [ask("one"), ask("two")] == [0, 0]
        assert min(ask("one"), ask("two")) > 0


def test_a_prompt_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        answer = httpx.post(
            f"{server.address}/v1/completions", json={"prompt": "ab" * 9000}, timeout=60
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "--cache-memory" in answer.json()["error"]["message"]


@pytest.mark.parametrize("context", [256, 100_000])
@pytest.mark.parametrize("blocks", [8, 9])
def test_a_prompt_needs_no_more_room_than_its_answer_may_take(
    tmp_path: Path, context: int, blocks: int
) -> None:
    model = save_tiny(tmp_path / "model", context=context)
    with running(model, cache_memory=2**20) as server:
        assert server.target.prefixes is not None
        pool = server.target.prefixes.pool
        pool.limit = blocks * pool.block_bytes
        held = blocks * pool.places_per_block
        most = min(context, held)
        assert server.target.context_length == most
        for tokens in (5, 1):
            body = {"prompt": "a" * (most - tokens), "max_tokens": tokens, "temperature": 0}
            answer = server.post("/v1/completions", **body)
            assert answer["usage"]["completion_tokens"] == tokens
        whole = server.post("/v1/completions", prompt="a" * 150)
        assert whole["usage"]["completion_tokens"] == 16
        longest = server.refused("/v1/completions", 400, prompt="a" * most, max_tokens=1)
        assert longest["code"] == "context_length_exceeded"
        is_cache = held < context
        assert ("--cache-memory" in longest["message"]) == is_cache
        assert f"{most - 1}" in longest["message"]
        messages = [{"role": "user", "content": "a" * (most - 20)}]  # a beginning of an answer
        left = server.client.post("/v1/chat/completions", json={"messages": messages})
        assert left.status_code == (400 if is_cache else 200)


def test_a_text_ends_where_the_cache_does(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        most = server.target.context_length
        assert most is not None
        assert most < 10_000
        asked = {"max_tokens": 2 * most, "temperature": 1.0, "seed": 1}
        for prompt in (PROMPT, PROMPT, "ab" * (most // 2 - 50), "ab" * (most // 2 - 50)):
            answer = server.post("/v1/completions", prompt=prompt, **asked)
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["total_tokens"] == most
        (card,) = server.client.get("/v1/models").json()["data"]
        assert card["max_model_len"] == most


def test_texts_of_a_prompt_that_do_not_fit_together_give_way(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        most = server.target.context_length
        assert most is not None
        body = {"prompt": PROMPT, "max_tokens": most // 2, "temperature": 1.0, "seed": 1}
        alone = server.post("/v1/completions", **body)["choices"][0]["text"]
        answer = server.post("/v1/completions", **body, n=4)
        assert [each["finish_reason"] for each in answer["choices"]] == ["length"] * 4
        assert answer["choices"][0]["text"] == alone
        assert answer["usage"]["completion_tokens"] == 4 * (most // 2)


def test_texts_that_take_a_block_each_fill_the_cache_beside_their_prompt(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        assert server.target.prefixes is not None
        pool = server.target.prefixes.pool
        pool.limit = 9 * pool.block_bytes
        body = {"prompt": PROMPT + "abcd", "max_tokens": 20, "seed": 1}
        texts = server.post("/v1/completions", **body, n=8)["choices"]
        assert len({each["text"] for each in texts}) == 8
        assert server.text(**body) == texts[0]["text"]


def test_what_the_cache_can_never_hold_is_not_embedded(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        most = server.target.context_length
        assert most is not None
        for long in ("a" * (most + 1), [[1] * (most + 1)]):
            error = server.refused("/v1/embeddings", 400, input=long)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        assert server.post("/v1/embeddings", input="a" * most)["usage"]["total_tokens"] == most
        cut = server.post("/api/embed", model="tiny", input="a" * (most + 1))
        assert cut["prompt_eval_count"] == most


def test_texts_that_fill_the_cache_are_embedded_beside_each_other(tmp_path: Path) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server, ThreadPoolExecutor(3) as pool:
        most = server.target.context_length
        assert most is not None
        assert most > 2 * CHUNK
        body = {"input": ["a" * most, "b"]}
        asked = [pool.submit(server.post, "/v1/embeddings", **body) for _ in range(3)]
        first, *others = (each.result()["data"] for each in asked)
        assert others == [first] * 2


@pytest.mark.parametrize(
    ("blocks", "texts"), [(9, ["a"] * 20), (127, ["a" * 127 * 32, "b"])], ids=["many", "long"]
)
def test_texts_beside_each_other_take_no_more_blocks_than_there_are(
    blocks: int, texts: list[str], tmp_path: Path
) -> None:
    large = save_tiny(tmp_path / "large", context=100_000)
    with running(large, cache_memory=2**20) as server:
        pool = server.target.plain.model.pool
        alone = [server.post("/v1/embeddings", input=each)["data"][0] for each in set(texts)]
        pool.limit = blocks * pool.block_bytes
        found = server.post("/v1/embeddings", input=texts)["data"]
    assert len(found) == len(texts)
    assert all(any(near(each, one) for one in alone) for each in found)


def near(*told: Any) -> bool:
    one, other = (np.array(each["embedding"]) for each in told)
    return bool(np.abs(one - other).max() < 1e-5)


def test_a_cache_of_nothing_is_refused(tiny: str) -> None:
    from draftwood_serve.loaded import LoadedTarget
    from draftwood_serve.settings import ServeSettings

    with pytest.raises(ValueError, match="holds next to nothing"):
        LoadedTarget(ServeSettings(model=tiny, cache_memory=100), nullcontext())
