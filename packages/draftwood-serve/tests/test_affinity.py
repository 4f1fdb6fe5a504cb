"""Choice of a replica for each request."""

import json
from typing import Any

import pytest

from draftwood_serve.affinity import (
    BLOCK,
    MOST_BLOCKS,
    REMEMBERED,
    Affinity,
    ReplicaLoad,
    beginnings_of,
    fields_of,
    texts_of,
)

LONG = "All work and no play makes Jack a dull boy. " * 40


def chat(*said: str, owner: str = "", **more: Any) -> list[bytes]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    return beginnings_of(owner, {"messages": messages, **more})


def chosen_for(
    beginnings: list[bytes], affinity: Affinity, loads: list[ReplicaLoad]
) -> ReplicaLoad:
    """The replica that is asked, which knows the beginnings from then on."""
    chosen = affinity.choose(beginnings, loads)
    affinity.remember(beginnings, chosen)
    return chosen


def test_the_least_busy_replica_is_chosen_and_replicas_take_turns() -> None:
    loads, affinity = [ReplicaLoad(0, 2), ReplicaLoad(1), ReplicaLoad(2)], Affinity(1)
    names = []
    for _ in range(4):
        chosen = affinity.choose([], loads)
        chosen.open += 1
        chosen.served += 1
        names.append(chosen.name)
    assert names == [1, 2, 1, 2]


def test_a_conversation_goes_on_where_its_beginning_is_known() -> None:
    loads, affinity = [ReplicaLoad(0), ReplicaLoad(1)], Affinity(2)
    first = chosen_for(chat(LONG), affinity, loads)
    first.open = 2  # busier, though not clearly
    assert chosen_for(chat(LONG, "Yes.", "And then?"), affinity, loads) is first
    assert chosen_for(chat("Something else. " * 40), affinity, loads) is not first


def test_a_replica_that_is_clearly_busier_hands_over() -> None:
    loads, affinity = [ReplicaLoad(0), ReplicaLoad(1)], Affinity(2)
    first = chosen_for(chat(LONG), affinity, loads)
    first.open = 3
    second = chosen_for(chat(LONG, "Yes.", "And then?"), affinity, loads)
    assert second is not first
    first.open, second.open = 0, 1
    assert chosen_for(chat(LONG, "Yes.", "And then?", "More"), affinity, loads) is second


def test_the_longest_known_beginning_decides() -> None:
    loads, affinity = [ReplicaLoad(0), ReplicaLoad(1)], Affinity(0)
    first = chosen_for(chat(LONG, "one", LONG), affinity, loads)
    first.open = 1
    second = chosen_for(chat(LONG, "two", LONG), affinity, loads)
    assert second is not first
    second.open = 1
    assert chosen_for(chat(LONG, "one", LONG, "go on"), affinity, loads) is first
    assert chosen_for(chat(LONG, "two", LONG, "go on"), affinity, loads) is second


def test_a_replica_that_has_ended_is_forgotten() -> None:
    loads, affinity = [ReplicaLoad(0), ReplicaLoad(1, open=1)], Affinity(9)
    assert chosen_for(chat(LONG), affinity, loads).name == 0
    assert chosen_for(chat(LONG), affinity, [ReplicaLoad(2), ReplicaLoad(1, open=1)]).name == 2


def test_beginnings_are_told_apart_by_owner_model_and_what_is_read_first() -> None:
    known = chat(LONG)
    assert chat(LONG, "Yes.", "And?")[: len(known) - 1] == known[:-1]
    others = [
        chat(LONG, owner="1"),
        chat(LONG, model="other"),
        chat(LONG, tools=[{"name": "f"}]),
        chat("X" + LONG),
    ]
    for other in others:
        assert not set(other) & set(known)


def test_generate_s_system_is_read_before_the_prompt() -> None:
    def generate(system: str, prompt: str) -> list[bytes]:
        return beginnings_of("", {"prompt": prompt, "system": system})

    known = generate(LONG, "a")
    assert len(known) >= len(LONG) // BLOCK
    assert generate(LONG, "Something else.")[: len(known) - 1] == known[:-1]
    assert not set(generate("Be brief.", LONG)) & set(generate("Be exact.", LONG))


@pytest.mark.parametrize("name", ["prompt", "input"])
@pytest.mark.parametrize("prompt", [LONG, list(range(900))])
def test_prompts_of_all_endpoints_have_beginnings(name: str, prompt: Any) -> None:
    found = beginnings_of("", {"temperature": 1, name: prompt})
    other = beginnings_of("", {name: prompt, "seed": 3})
    assert found == other
    assert len(found) == len(json.dumps([prompt])) // BLOCK


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 200_000, b'{"messages": 1}', b"\xff{"])
def test_what_cannot_be_read_has_no_beginnings(body: bytes) -> None:
    fields = fields_of(body)
    assert beginnings_of("", fields) == []
    assert texts_of(fields) == 1


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"prompt": "go"}, 1),
        ({"prompt": "go", "n": 3}, 3),
        ({"prompt": ["go", "on"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"messages": [{}, {}], "n": 5}, 5),
        ({"input": ["a", "b", "c"]}, 3),
        ({"input": [{"role": "user"}, {}]}, 1),
        ({"prompt": [], "n": 10**9}, 1),
        ({"prompt": None, "n": "2"}, 1),
    ],
)
def test_a_request_weighs_as_much_as_the_texts_it_asks_for(
    fields: dict[str, Any], texts: int
) -> None:
    assert texts_of(fields) == texts


def test_long_prompts_and_many_beginnings_are_bounded() -> None:
    assert len(chat("a" * 10**6)) == MOST_BLOCKS
    affinity, loads = Affinity(1), [ReplicaLoad(0)]
    for number in range(2 * REMEMBERED // MOST_BLOCKS):
        chosen_for(chat(f"{number:05} " + "a" * 40_000), affinity, loads)
    assert len(affinity.known) == REMEMBERED
