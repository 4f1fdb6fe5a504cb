"""CPU microseconds of grammar masks in trees of eight nodes, along a JSON text.

    .venv/bin/python -m benchmarks.masks --people 4,20,60

Prints for each length of text the least mean of some rounds: fitting a tree to the grammar with the
masks of its root and first child, the masks of all eight nodes, and a copy of a matcher.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoTokenizer

from draftwood.engine.constraints import Branches
from draftwood.grammar import Compiler, Grammar
from draftwood.loading import hub
from draftwood.sampling import Context
from draftwood.tree import DraftTree

PARENTS = (-1, 0, 0, 0, 1, 1, 1, 4)  # the first child of each level is the text's own
PERSON = {
    "name": {"type": "string"},
    "age": {"type": "integer"},
    "city": {"enum": ["Oslo", "Rome"]},
}
SCHEMA = {"type": "array", "items": {"type": "object", "properties": PERSON, "required": ["name"]}}
ROUNDS = 7


def trees(grammar: Grammar, text: list[int]) -> list[tuple[int, DraftTree]]:
    """Place draft trees in the text, one to three tokens apart."""
    rng, state, allowed = random.Random(0), grammar.start(), list[list[int]]()
    for token in text:
        allowed.append(state.allowed().nonzero()[0].tolist())
        below = state.after(token)
        assert below is not None
        state = below
    found, place = [], 0
    while place + 4 < len(text):
        tokens = [text[place], text[place + 1], *(rng.choice(allowed[place + 1]) for _ in "ab")]
        tokens += [
            text[place + 2],
            *(rng.choice(allowed[place + 2]) for _ in "ab"),
            text[place + 3],
        ]
        found.append((place, DraftTree.of(tokens, PARENTS)))
        place += rng.choice((1, 2, 3))
    return found


def fit(branches: Branches, tree: DraftTree, before: list[int]) -> None:
    branches.fit(tree, 64)
    read(branches, tree, before, range(2))


def read(branches: Branches, tree: DraftTree, before: list[int], nodes: Any = range(8)) -> None:
    for node in nodes:
        path = [tree.token_list[each] for each in [0, *tree.path_to(node)]]
        branches.mask(Context(before + path, 0))


def mean(
    act: Callable[..., None],
    grammar: Grammar,
    text: list[int],
    planned: list[tuple[int, DraftTree]],
) -> float:
    """CPU microseconds of a step."""
    branches, done, spent = Branches(grammar, 0), 0, 0.0
    for place, tree in planned:
        branches.keep(text[done:place])
        done, before = place, text[:place]
        start = time.thread_time()
        act(branches, tree, before)
        spent += time.thread_time() - start
    return spent / len(planned) * 1e6


def copying(grammar: Grammar, text: list[int]) -> float:
    matcher = grammar.matcher.deep_copy()
    matcher.consume_tokens(text)
    start = time.thread_time()
    for _ in range(200):
        matcher.deep_copy()
    return (time.thread_time() - start) / 200 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", default="4,20,60", help="objects in the text")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(hub.resolve("smollm2-135m"))
    end = frozenset({tokenizer.convert_tokens_to_ids("<|im_end|>")})
    grammar = Compiler(tokenizer, len(tokenizer), end).json_schema(SCHEMA)
    for count in map(int, parser.parse_args().people.split(",")):
        people = [{"name": f"Ada {n}", "age": n, "city": "Oslo"} for n in range(count)]
        text = tokenizer(json.dumps(people), add_special_tokens=False)["input_ids"]
        planned = trees(grammar, text)
        fitted, masks = (
            min(mean(act, grammar, text, planned) for _ in range(ROUNDS)) for act in (fit, read)
        )
        print(
            f"{len(text)} tokens: fit and two masks {fitted:.0f} us, eight masks {masks:.0f} us, a"
            f" copy {min(copying(grammar, text) for _ in range(ROUNDS)):.1f} us"
        )


if __name__ == "__main__":
    main()
