"""Walks along the branches of trees: every mask is that of a matcher which saw nothing else."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from schemas import random_lists, random_schema

from draftwood.grammar import Compiler, Grammar
from draftwood.grammar.grammar import GrammarState, _Cursor
from small_models import bytes_and_pairs

TOKENIZER = bytes_and_pairs()
WIDTH = len(TOKENIZER) + 7
END: Any = TOKENIZER.eos_token_id
PARTS = ['"', ",", "[", "]", "{", "}", ":", "Ċ"]  # the last is a line break


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, WIDTH, frozenset({END}))


def fresh_mask(grammar: Grammar, tokens: list[int]) -> list[int]:
    """The tokens that llguidance allows after others, asked for nothing before."""
    matcher = grammar.matcher.deep_copy()
    assert matcher.consume_tokens(tokens)
    packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        return []
    bits = np.unpackbits(packed, count=grammar.vocab_size, bitorder="little")
    return bits.nonzero()[0].tolist()


def mask_of(state: GrammarState) -> list[int]:
    return state.allowed().nonzero()[0].tolist()


class RollingBack(_Cursor):
    """One matcher that is rolled back to where branches part, as llguidance means it to be used."""

    def to(self, state: GrammarState) -> Any:
        tokens: list[int] = []
        here, there, back = self.tip.text, state.text, 0
        while here is not there:
            if here.length >= there.length:
                assert here.above is not None
                here, back = here.above, back + 1
            else:
                assert there.above is not None
                tokens.append(there.token)
                there = there.above
        if back:
            self.tip.matcher.rollback(back)
        self.tip.matcher.consume_tokens(tokens[::-1])
        self.tip.text = state.text
        return self.tip.matcher if self.is_well() else None


@dataclass(frozen=True)
class Node:
    """A text, its state, and the tokens that a fresh matcher allows after it."""

    tokens: list[int]
    state: GrammarState
    fresh: list[int]


def walk(grammar: Grammar, rng: random.Random, between: set[int], matchers: _Cursor) -> bool:
    """Grow trees along a text; whether every mask in them is a fresh matcher's.

    Args:
        between: tokens between the parts of JSON, which are taken more often.
    """
    start = GrammarState(matchers, matchers.beginning.text)
    newest = Node([], start, fresh_mask(grammar, []))
    for _ in range(8):
        tree = [newest]
        for _ in range(12):
            above = rng.choice(tree[-5:])
            below = branch(grammar, above, rng, between)
            tree += [] if below is None else [below]
        for node in rng.sample(tree, len(tree)):
            if rng.random() < 0.2:
                node.state.forced()
            if mask_of(node.state) != node.fresh:
                return False
        newest = rng.choice(tree[-3:])  # the others are given up for good
    return True


def branch(grammar: Grammar, node: Node, rng: random.Random, between: set[int]) -> Node | None:
    """A node that is one token longer; None where the text can only end."""
    ways = [token for token in node.fresh if token not in grammar.end_tokens]
    if not ways:
        return None
    parts = [way for way in ways if way in between]
    token = rng.choice(parts if parts and rng.random() < 0.8 else ways)
    below, tokens = node.state.after(token), [*node.tokens, token]
    assert below is not None
    return Node(tokens, below, fresh_mask(grammar, tokens))


def wrong_walks(compiler: Compiler, cursor: type[_Cursor], walks: int, schemas: int) -> list[int]:
    """The walks on which a mask was not a fresh matcher's."""
    half = schemas // 2
    wanted = [*map(random_lists, range(half)), *map(random_schema, range(schemas - half))]
    grammars = [compiler.json_schema(schema) for schema in wanted]
    parts: Any = compiler.tokenizer.convert_tokens_to_ids(PARTS)
    between = set(parts)
    wrong = []
    for number in range(walks):
        grammar = grammars[number % schemas]
        if not walk(grammar, random.Random(number), between, cursor(grammar)):
            wrong.append(number)
    return wrong


def test_every_mask_on_a_thousand_walks_is_a_fresh_one(compiler: Compiler) -> None:
    assert wrong_walks(compiler, _Cursor, walks=1000, schemas=50) == []


def test_the_walks_tell_a_matcher_that_is_rolled_back(compiler: Compiler) -> None:
    assert len(wrong_walks(compiler, RollingBack, walks=200, schemas=50)) > 5


def test_a_sibling_does_not_leave_its_mask_behind(compiler: Compiler) -> None:
    """The shortest text on which ``LLMatcher.rollback`` does."""

    def siblings(matchers: _Cursor) -> tuple[list[int], list[int]]:
        state: Any = GrammarState(matchers, matchers.beginning.text)
        for token in TOKENIZER('{"t":["x"')["input_ids"]:
            state = state.after(token)
        other, wanted = state, state
        for token in TOKENIZER(",\n")["input_ids"]:
            other = other.after(token)
        other.allowed()
        assert other.after(*TOKENIZER(" ")["input_ids"]).may_end is False
        for token in TOKENIZER("]\n")["input_ids"]:
            wanted = wanted.after(token)
        return mask_of(wanted), fresh_mask(grammar, TOKENIZER('{"t":["x"]\n')["input_ids"])

    items = {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2}
    grammar = compiler.json_schema({"type": "object", "properties": {"t": items}})
    found, fresh = siblings(_Cursor(grammar))
    assert found == fresh
    found, fresh = siblings(RollingBack(grammar))
    assert found != fresh


@pytest.mark.parametrize(
    "lark", ['start: a "b"\na[max_tokens=3]: /a+/', 'start: a "b"\na[stop="c"]: /a+/']
)
def test_grammars_that_cannot_be_rolled_back_branch_too(compiler: Compiler, lark: str) -> None:
    grammar = compiler.lark(lark)
    assert all(walk(grammar, random.Random(seed), set(), _Cursor(grammar)) for seed in range(9))


@pytest.mark.model
def test_every_mask_of_the_built_in_tokenizer_is_a_fresh_one() -> None:
    from transformers import AutoTokenizer

    from draftwood.loading import hub

    tokenizer = AutoTokenizer.from_pretrained(hub.resolve("smollm2-135m"))
    compiler = Compiler(tokenizer, len(tokenizer), frozenset({2}))
    assert wrong_walks(compiler, _Cursor, walks=24, schemas=6) == []
