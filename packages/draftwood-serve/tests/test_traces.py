"""Steps told with their trees: what they say puts the text together again."""

from types import SimpleNamespace
from typing import Any

import pytest

from draftwood_serve.metrics import texts_at_once
from local_server import RunningServer

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "abcabcabcabc"}],
    "max_tokens": 40,
    "temperature": 0,
    "seed": 3,
}


def traced(server: RunningServer, method: str = "auto", **more: Any) -> Any:
    wish = {"method": method, "trace": "tree"}
    return server.post(CHAT, speculative=wish, **{**ASKED, **more})


def steps_of(answer: Any) -> list[dict[str, Any]]:
    return answer["metrics"]["speculative_decoding"]["per_step_trees"]


@pytest.mark.parametrize(("method", "temperature"), [("auto", 0), ("lookup", 0), ("auto", 1)])
def test_steps_put_the_text_together(
    server: RunningServer, method: str, temperature: float
) -> None:
    answer = traced(server, method, temperature=temperature)
    steps = steps_of(answer)
    assert (
        "".join("".join(step["tokens"]) for step in steps)
        == (answer["choices"][0]["message"]["content"])
    )
    assert sum(len(step["tokens"]) for step in steps) == answer["usage"]["completion_tokens"]
    told = answer["metrics"]["speculative_decoding"]
    assert [step["accepted"] for step in steps[1:]] == told["per_step_accepted"]
    assert [step["drafted"] for step in steps[1:]] == told["per_step_drafted"]
    if temperature == 0:
        assert any(step["accepted"] for step in steps)


@pytest.mark.parametrize("method", ["auto", "lookup"])
def test_trees_are_whole_and_their_paths_are_what_was_written(
    server: RunningServer, method: str
) -> None:
    steps = steps_of(traced(server, method))
    assert steps[0]["tree"] is None
    newest = steps[0]["tokens"][-1]
    for step in steps[1:]:
        tree = step["tree"]
        assert len({len(tree[key]) for key in ("tokens", "parents", "proposers")}) == 1
        assert len(tree["tokens"]) == 1 + step["drafted"]
        assert tree["tokens"][0] == newest
        assert tree["parents"][0] == -1
        assert all(parent < node for node, parent in enumerate(tree["parents"]))
        assert tree["proposers"][0] == []
        assert all(tree["proposers"][1:])
        if method == "lookup":  # one source, named after the method
            assert all(names == ["lookup"] for names in tree["proposers"][1:])
        assert [tree["tokens"][node] for node in tree["path"]] == step["tokens"][: step["accepted"]]
        for node, parent in zip(tree["path"], [0, *tree["path"]], strict=False):
            assert tree["parents"][node] == parent
        newest = step["tokens"][-1]


def test_times_grow(server: RunningServer) -> None:
    steps = steps_of(traced(server))
    times = [step["elapsed_ms"] for step in steps]
    assert times == sorted(times)
    assert times[0] > 0
    assert all(step["ms"] > 0 for step in steps)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_streams_tell_each_step_with_its_chunk(server: RunningServer, path: str) -> None:
    asked = {key: value for key, value in ASKED.items() if key != "messages"}
    if path == CHAT:
        asked["messages"] = ASKED["messages"]
    else:
        asked["prompt"] = "abcabcabcabc"
    events = server.stream(path, **asked, speculative={"trace": "tree"})
    choices = [choice for event in events for choice in event["choices"]]
    steps = [choice["step"] for choice in choices]
    texts = [
        choice["delta"].get("content", "") if path == CHAT else choice["text"] for choice in choices
    ]
    assert "".join("".join(step["tokens"]) for step in steps) == "".join(texts)
    assert "per_step_trees" not in events[-1]["metrics"]["speculative_decoding"]
    whole = server.post(path, **asked, speculative={"trace": "tree"})
    assert [step["tree"] for step in steps_of(whole)] == [step["tree"] for step in steps]


def test_responses_tell_them_at_the_end(server: RunningServer) -> None:
    sent = {"input": "abcabc", "max_output_tokens": 8, "speculative": {"trace": "tree"}}
    assert len(steps_of(server.post("/v1/responses", **sent))) > 1
    assert len(steps_of(server.stream("/v1/responses", **sent)[-1]["response"])) > 1


def test_several_texts_have_a_list_each(server: RunningServer) -> None:
    answer = traced(server, n=3, temperature=1)
    for steps, choice in zip(steps_of(answer), answer["choices"], strict=True):
        text = "".join("".join(step["tokens"]) for step in steps)
        assert text == choice["message"]["content"]


@pytest.mark.parametrize("trace", [True, False])
def test_who_does_not_ask_for_trees_gets_none(server: RunningServer, trace: bool) -> None:
    answer = server.post(CHAT, **ASKED, speculative={"trace": trace})
    told = answer["metrics"]["speculative_decoding"]
    assert "per_step_trees" not in told
    assert ("per_step_accepted" in told) is trace
    events = server.stream(CHAT, **ASKED, speculative={"trace": trace})
    assert not any("step" in choice for event in events for choice in event["choices"])


@pytest.mark.parametrize("trace", ["trees", 1, []])
def test_other_values_are_refused(server: RunningServer, trace: Any) -> None:
    refused = server.refused(CHAT, 400, **ASKED, speculative={"trace": trace})
    assert "speculative" in refused["param"]


def test_answers_say_where_time_went_and_whether_drafts_paid(server: RunningServer) -> None:
    metrics = server.post("/v1/completions", prompt="abab" * 9, max_tokens=40)["metrics"]
    parts, steps = metrics["step_ms"], metrics["speculative_decoding"]["num_spec_steps"]
    assert set(parts) == {"target", "draft", "verify", "rest"}
    assert min(parts.values()) >= 0
    assert sum(parts.values()) * steps >= 0.5 * metrics["generation_time_ms"]
    drafted = metrics["speculative_decoding"]["num_draft_tokens"]
    assert (metrics["drafts"] is None) is not bool(drafted)
    plain = {"prompt": "a", "max_tokens": 8, "speculative": False}
    assert server.post("/v1/completions", **plain)["metrics"]["drafts"] is None
    (last,) = server.stream("/v1/completions", prompt="abab", max_tokens=9)[-1:]
    assert last["metrics"]["step_ms"]["target"] > 0


def test_texts_that_shared_passes_leave_the_verdict_out(server: RunningServer) -> None:
    body = {"prompt": "abab" * 9, "max_tokens": 40, "n": 3}
    metrics = server.post("/v1/completions", **body)["metrics"]
    assert set(metrics["step_ms"]) == {"target", "draft", "verify"}
    assert metrics["drafts"] is None


def test_the_time_between_tokens_is_each_texts_own(server: RunningServer) -> None:
    """Texts that are written at once take longer than their number of tokens says."""
    body = {"prompt": "abab" * 9, "max_tokens": 40, "speculative": False}
    for n in (1, 4):
        metrics = server.post("/v1/completions", **body, n=n)["metrics"]
        one_by_one = metrics["generation_time_ms"] / (n * 39)
        assert metrics["mean_itl_ms"] == pytest.approx(n * one_by_one, rel=0.2)


def choice(began: float, newest: float) -> Any:
    return SimpleNamespace(began=began, newest=newest)


def test_texts_at_once_are_counted_by_their_spans() -> None:
    assert texts_at_once([choice(1, 3)]) == 1
    assert texts_at_once([choice(1, 3), choice(1, 3), choice(1, 2), choice(0, 0)]) == 2.5
    assert texts_at_once([choice(1, 1)]) == 1


def test_a_text_without_steps_has_no_costs(server: RunningServer) -> None:
    metrics = server.post("/v1/completions", prompt="ab", max_tokens=1)["metrics"]
    assert metrics["step_ms"] is None
    assert metrics["drafts"] is None
