"""States of texts under compiled grammars, and what is refused."""

import json
import random
import sys
from typing import Any

import numpy as np
import pytest
from schemas import random_schema
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwood.engine.constraint import Constraint, ConstraintState
from draftwood.grammar import Compiler, Grammar
from draftwood.grammar.grammar import GrammarState
from draftwood.validation import LARGEST
from small_models import bytes_and_pairs, tokenizer_of

TOKENIZER = bytes_and_pairs()
END = TOKENIZER.eos_token_id
WIDTH = len(TOKENIZER) + 7  # as models pad their vocabularies


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, WIDTH, frozenset({END}))


def state_after(grammar: Grammar, tokens: list[int]) -> GrammarState | None:
    """The state after tokens, in a matcher that saw nothing else."""
    state: GrammarState | None = grammar.start()
    for token in tokens:
        state = None if state is None else state.after(token)
    return state


def told(state: ConstraintState) -> tuple[list[int], bool, bool, list[int]]:
    allowed = state.allowed().nonzero()[0].tolist()
    return allowed, state.may_end, state.must_end, list(state.forced())


def test_a_grammar_is_a_constraint(compiler: Compiler) -> None:
    grammar = compiler.json_object()
    assert isinstance(grammar, Constraint)
    assert isinstance(grammar.start(), ConstraintState)
    assert grammar.start().allowed().shape == (WIDTH,)


@pytest.mark.parametrize("seed", range(6))
def test_every_branch_is_as_if_there_were_no_other(compiler: Compiler, seed: int) -> None:
    """States are asked in any order, behind the end and back again; forbidden tokens too."""
    grammar, rng = compiler.json_schema(random_schema(seed)), random.Random(seed)
    known: list[tuple[list[int], GrammarState]] = [([], grammar.start())]
    for _ in range(150):
        tokens, state = rng.choice(known[-12:])
        mask = state.allowed()
        choices = mask.nonzero()[0].tolist()
        token = rng.choice(choices) if rng.random() < 0.8 else rng.randrange(WIDTH)
        below = state.after(token)
        assert (below is not None) >= bool(mask[token])
        if below is not None:
            known.append(([*tokens, token], below))
        if rng.random() < 0.3:
            old, earlier = rng.choice(known)
            fresh = state_after(grammar, old)
            assert fresh is not None
            assert told(earlier) == told(fresh)


def test_end_tokens_come_where_the_text_may_end_and_alone_where_it_must() -> None:
    other = TOKENIZER.convert_tokens_to_ids("}}")
    compiler = Compiler(TOKENIZER, WIDTH, frozenset({END, other}))
    state = compiler.regex("a|ab+").start()
    assert not state.may_end
    assert state.after(END) is None
    a, b = TOKENIZER("ab")["input_ids"]
    after_a = state_after(compiler.regex("a|ab+"), [a])
    assert after_a is not None
    assert told(after_a)[:3] == (sorted({b, END, other}), True, False)
    ended = after_a.after(END)
    assert ended is not None
    assert told(ended)[:3] == (sorted({END, other}), True, True)
    assert ended.after(b) is None
    assert ended.after(other) is not None
    after_b = after_a.after(b)  # back from behind the end
    assert after_b is not None
    assert told(after_b)[:3] == (sorted({b, END, other}), True, False)
    whole = state_after(compiler.regex("a"), [a])
    assert whole is not None
    assert told(whole) == (sorted({END, other}), True, True, [])


def test_forced_tokens_are_the_only_ones_allowed(compiler: Compiler) -> None:
    state: Any = compiler.json_schema(
        {"type": "object", "properties": {"k": {"const": "only"}}, "required": ["k"]}
        | {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    ).start()
    text, forced = [], 0
    while not state.must_end:
        choices, certain = told(state)[0], state.forced()
        if certain:
            assert choices == certain[:1]
            forced += 1
        text.append(choices[0])
        state = state.after(choices[0])
    assert forced > 3
    assert json.loads(TOKENIZER.decode(text)) == {"k": "only"}
    assert state.forced() == [END]


def test_a_way_without_an_end_allows_nothing_and_disturbs_no_other() -> None:
    tokenizer = tokenizer_of(list("abx"))
    ab = Compiler(tokenizer, 4, frozenset({3}))
    grammar = ab.lark('start: "ac" | "bb"')
    start = grammar.start()
    lost, way = start.after(0), start.after(1)
    assert lost is not None
    assert way is not None
    assert told(lost) == ([], False, False, [])
    assert lost.after(0) is None
    assert told(way)[0] == [1]
    assert told(start)[0] == [0, 1]
    with pytest.raises(ValueError, match="forbids every text"):
        ab.lark('start: "c"')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON"),
        ('{"enum": ["\\ud800"]}', "no JSON"),
        ({"enum": [float("nan")]}, "no JSON"),
        ({"enum": [object()]}, "no JSON"),
        ({"type": "nonsense"}, "Invalid type"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "Unsatisfiable"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "(?=a)"}, "look-ahead"),
        ({"$ref": "http://127.0.0.1/schema.json"}, "does not fetch"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"title": "x" * LARGEST}, "most are"),
        ('{"items":' * 5000 + "{}" + "}" * 5000, "nested"),
    ],
)
def test_schemas_that_cannot_be_followed_are_refused(
    compiler: Compiler, schema: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        compiler.json_schema(schema)
    assert "JSON schema" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_other_grammars_are_refused_likewise(compiler: Compiler) -> None:
    with pytest.raises(ValueError, match="unknown name"):
        compiler.lark('start: "a" | other')
    with pytest.raises(ValueError, match="unclosed group"):
        compiler.regex("(a")
    with pytest.raises(ValueError, match="half of a character"):
        compiler.lark('start: "\ud800"')
    for wrong in (compiler.lark, compiler.regex, compiler.json_schema):
        with pytest.raises(TypeError, match="got int"):
            wrong(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["r{next}", "((((((((r{next} | 'b')" + " | 'b')" * 7])
def test_rules_may_lead_to_one_another_thousands_of_times(compiler: Compiler, rule: str) -> None:
    """On a stack of usual size the process would end."""
    rules = [f"r{at}: {rule.format(next=at + 1)}".replace("'", '"') for at in range(6000)]
    text = "\n".join(rules)[: LARGEST - 100].rpartition("\n")[0]
    last = text.count("\n") + 1
    grammar = compiler.lark(f'start: r0\n{text}\nr{last}: "a"')
    assert state_after(grammar, TOKENIZER.encode("a")) is not None


def test_what_would_be_compiled_for_ever_is_refused(compiler: Compiler) -> None:
    """Without bounds this takes 100 MB more every second."""
    patterns = [f"[a-f]{at}.{{3}}" for at in range(24)]
    schema = {"allOf": [{"type": "string", "pattern": each} for each in patterns]}
    with pytest.raises(ValueError, match=r"not compiled within 5 s; give fewer patterns"):
        compiler.json_schema(schema)
    terms = " & ".join(f"/(?s:.*){each}(?s:.*)/" for each in patterns)
    with pytest.raises(ValueError, match=r"the Lark grammar cannot be followed: it is not"):
        compiler.lark(f"start: A\nA: {terms}")
    few = compiler.lark("start: A\nA: /[ab]+/ & /(?s:.*)b/")
    assert state_after(few, TOKENIZER.encode("ab")) is not None
    with pytest.raises(ValueError, match=r"the Lark grammar cannot be followed: .*only supported"):
        compiler.lark("start: A & B\nA: other")


def test_tokenizers_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wordwise = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    ends = frozenset({0})
    for tokenizer, width, end, reason in (
        (TOKENIZER, len(TOKENIZER) - 2, ends, "belongs to another model"),
        (TOKENIZER, WIDTH, frozenset(), "ends a text"),
        (wordwise, 2, ends, "cannot read the tokens"),
        (object(), 2, ends, "fast tokenizer"),
    ):
        with pytest.raises(ValueError, match=reason):
            Compiler(tokenizer, width, end).json_object()  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match=r"draftwood\[grammar\]"):
        Compiler(TOKENIZER, WIDTH, ends).json_object()


def test_markers_without_a_logit_and_settings_for_batches_do_not_matter() -> None:
    tokenizer = bytes_and_pairs()
    width = len(tokenizer)
    wanted = Compiler(tokenizer, width, frozenset({END})).regex("[ab]+").start().allowed()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.backend_tokenizer.enable_padding(length=40)
    tokenizer.backend_tokenizer.enable_truncation(40)
    found = Compiler(tokenizer, width, frozenset({END})).regex("[ab]+").start().allowed()
    assert np.array_equal(found, wanted)


def test_masks_are_of_their_own_memory(compiler: Compiler) -> None:
    state = compiler.regex("[ab]+").start()
    mask = state.allowed()
    mask[:] = True
    assert not np.array_equal(state.allowed(), mask)
