"""Two copies of one model, ends of knobs, costs, and what a rule or a writer cannot do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood import LanguageModel, SamplingParams
from draftwood.drafters import PromptLookup
from draftwood.engine import Method
from draftwood.testing import TableModel
from draftwood.verifiers import Match
from draftwood_choices.collaboration import writer as writers_module
from draftwood_choices.collaboration.loop import Collaboration
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage, TurnRequest
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules import RULES, Foreal, parse_rule
from draftwood_choices.collaboration.texts import collaborate
from draftwood_choices.collaboration.writer import KeptSession, LocalWriter, WriterLostError
from letters import letters
from writers import TABLES, ids, table_lm, written

MOST = 60
PROMPT = "one. two. one. two. 3.5 one."
ENDS = {  # knobs that leave all to one writer
    "foreal,n=0": FOLLOWER,
    "foreal,p=0": FOLLOWER,
    "foreal,n=1000": LEADER,
    "entropy-switch,tau=1000": FOLLOWER,
    "entropy-switch,tau=-1": LEADER,
    "step-router,tau=1": FOLLOWER,
    "step-router,tau=0": LEADER,
    "random,share=0": FOLLOWER,
    "random,share=1": LEADER,
    "first-n,n=0": FOLLOWER,
    "first-n,n=1000": LEADER,
    "fixed-score,least=-1000": FOLLOWER,
    "fixed-score,least=1000": LEADER,
    "oracle,tau=1000": FOLLOWER,
    "oracle,tau=-1000": LEADER,
}
BOTH = ["foreal,n=3", "entropy-switch,tau=4.9,least=3", "random,length=4", "first-n,n=9"]
"""Rules by which both writers of the tests here write."""


@pytest.fixture(scope="module")
def large(target: str) -> LanguageModel:
    return draftwood.load(target)


@pytest.fixture(scope="module")
def small(draft: str) -> LanguageModel:
    return draftwood.load(draft, method="lookup")


@pytest.mark.parametrize("rule", [*RULES, *BOTH])
def test_two_copies_of_one_model_write_its_text(rule: str, large: LanguageModel) -> None:
    plain = large.with_method("plain").generate(PROMPT, max_new_tokens=MOST)
    copy = large.with_method("lookup")
    result = collaborate(
        PROMPT, large, copy, parse_rule(rule), max_new_tokens=MOST, exact=False
    ).run()
    assert list(ids(result)) == plain.token_ids
    assert result.text == plain.text
    assert result.tokens == MOST
    if rule in BOTH:
        assert 0 < result.leader_share < 1


@pytest.mark.parametrize("rule", BOTH)
def test_a_writer_that_forgets_writes_another_text(
    rule: str, large: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = large.with_method("plain").generate(PROMPT, max_new_tokens=MOST)
    monkeypatch.setattr(LocalWriter, "tokens", lambda self, passages: [])
    result = collaborate(
        PROMPT, large, large, parse_rule(rule), max_new_tokens=MOST, exact=False
    ).run()
    assert list(ids(result)) != plain.token_ids


@pytest.mark.parametrize("rule", ENDS)
def test_knobs_at_their_ends_give_one_writer_alone(
    rule: str, large: LanguageModel, small: LanguageModel
) -> None:
    alone = large if ENDS[rule] == LEADER else small
    plain = alone.generate(PROMPT, max_new_tokens=MOST)
    result = collaborate(
        PROMPT, large, small, parse_rule(rule), max_new_tokens=MOST, exact=False
    ).run()
    assert list(ids(result)) == plain.token_ids
    assert result.leader_share == (1.0 if ENDS[rule] == LEADER else 0.0)
    other = FOLLOWER if ENDS[rule] == LEADER else LEADER
    if rule.partition(",")[0] in ("foreal", "entropy-switch", "random", "first-n"):
        assert result.costs[other].passes == 0
        assert result.costs[ENDS[rule]].caught_up == 0


@pytest.mark.parametrize("rule", BOTH)
def test_what_the_other_wrote_is_read_once(
    rule: str, large: LanguageModel, small: LanguageModel
) -> None:
    result = collaborate(
        PROMPT, large, small, parse_rule(rule), max_new_tokens=MOST, exact=False
    ).run()
    for name, cost in result.costs.items():
        last = max(place for place, each in enumerate(result.passages) if each.writer == name)
        others = sum(each.count for each in result.passages[:last] if each.writer != name)
        own_turns = sum(each.writer == name for each in result.passages)
        # own tokens whose step was cut are read again: at most one step's at each turn
        assert others <= cost.caught_up <= others + own_turns
        assert cost.prompt == len(large.encode(PROMPT))
        assert cost.kept == sum(e.count for e in result.passages if e.writer == name)
        assert cost.turns == own_turns


@pytest.mark.parametrize("rule", ["random,length=1", "first-n,n=1", "first-n,n=2"])
def test_a_turn_that_ends_inside_a_character_loses_nothing(rule: str) -> None:
    cycle = np.full((3, 3), -30.0, np.float32)
    cycle[[0, 1, 2], [1, 2, 0]] = 30.0
    tokens = letters(("a", "\u0120\u00f0\u0141", "\u00a6\u012c"))  # a space and half a fox
    lm = LanguageModel(TableModel(cycle), tokens, Method(PromptLookup(1, 2, 3), Match()), "foxes")
    result = written(parse_rule(rule), 1, most=9, models=(lm, lm), temperature=0.0)
    assert result.text == 3 * " \U0001f98aa"


def test_a_seed_gives_one_text_and_another_seed_another() -> None:
    texts = [ids(written(Foreal(1, 0.5), seed, most=40)) for seed in (1, 1, 2, -1)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] != texts[0]


def test_a_text_ends_where_a_context_is_full(forgetful: str) -> None:
    tight = draftwood.load(forgetful)  # 32 tokens
    result = collaborate("hi.", tight, tight, Foreal(2), max_new_tokens=90, exact=False).run()
    plain = tight.generate("hi.", max_new_tokens=90)
    # the last turn reads all that the context holds; a text in one go need not read its last token
    assert list(ids(result)) == plain.token_ids[:-1]
    assert result.finish_reason == "length"


@pytest.mark.parametrize("rule", ["foreal,n=4", "step-router,tau=0", "oracle"])
def test_a_leader_whose_context_is_full_leaves_the_text_to_the_follower(
    rule: str, forgetful: str, small: LanguageModel
) -> None:
    tight = draftwood.load(forgetful)  # 32 tokens
    asked: dict[str, Any] = {"max_new_tokens": 60, "exact": False}
    result = collaborate("hi.", tight, small, parse_rule(rule), **asked).run()
    assert result.tokens == 60
    assert result.lost == {LEADER: "its context is full"}
    with pytest.raises(ValueError, match="the leader's context is 32; shorten the prompt"):
        collaborate("a" * 40, tight, small, parse_rule(rule), **asked)


def test_a_writer_ends_the_text_with_its_end_token() -> None:
    logits = np.zeros((3, 3), np.float32)
    logits[:, 1] = 9.0  # a mark behind everything

    class Ending(type(table_lm(logits).model)):  # type: ignore[misc]
        end_tokens = frozenset({1})

    lm = table_lm(logits)
    lm.model = Ending(logits)
    result = written(Foreal(2), 0, models=[lm, lm], temperature=0.0)
    assert ids(result) == (1,)
    assert result.finish_reason == "stop"


class LostAfter(LocalWriter):
    """A writer that breaks off after so many tokens."""

    left = 5

    def write(self, *args: Any) -> Any:
        for token in super().write(*args):
            if not self.left:
                raise WriterLostError("the line is dead")
            self.left -= 1
            yield token


@pytest.mark.parametrize("rule", ["foreal,n=8", "step-router,tau=0", "first-n,n=30"])
def test_where_the_leader_is_lost_the_follower_goes_on(
    rule: str, large: LanguageModel, small: LanguageModel
) -> None:
    params = SamplingParams(max_new_tokens=MOST)
    writers = {
        LEADER: LostAfter(large, PROMPT, params),
        FOLLOWER: LocalWriter(small, PROMPT, params),
    }
    result = Collaboration(parse_rule(rule), writers, MOST).run()
    assert result.tokens == MOST
    assert result.lost == {LEADER: "the line is dead"}
    assert result.costs[LEADER].kept == 5
    assert result.passages[-1].writer == FOLLOWER
    ahead = collaborate(
        PROMPT, large, small, parse_rule(rule), max_new_tokens=MOST, exact=False
    ).run()
    assert ids(result)[:5] == ids(ahead)[:5]


class Silent(LocalWriter):
    """A writer whose turns end without a token, as those of a server that filters all."""

    def write(self, *args: Any) -> Any:
        return
        yield


class Talkative(LocalWriter):
    """A writer that knows no most."""

    def write(self, passages: Any, most: int, *args: Any) -> Any:
        yield from super().write(passages, MOST * 5, *args)


def led_by(kind: type[LocalWriter], lm: LanguageModel, small: LanguageModel, rule: str) -> Any:
    params = SamplingParams(max_new_tokens=MOST)
    writers = {LEADER: kind(lm, PROMPT, params), FOLLOWER: LocalWriter(small, PROMPT, params)}
    return Collaboration(parse_rule(rule), writers, MOST, 1).run()


@pytest.mark.parametrize(
    "rule",
    [
        *("foreal,n=4", "entropy-switch,tau=0", "step-router,tau=0", "random,share=1"),
        *("first-n,n=9", "fixed-score,least=0", "oracle"),
    ],
)
def test_a_leader_that_sends_nothing_is_lost(
    rule: str, large: LanguageModel, small: LanguageModel
) -> None:
    result = led_by(Silent, large, small, rule)
    assert result.tokens == MOST
    assert result.lost == {LEADER: "it sent no tokens"}
    assert result.costs[LEADER].turns == 1
    assert {each.writer for each in result.passages} == {FOLLOWER}


def test_a_turn_ends_at_its_most_where_the_writer_goes_on(
    large: LanguageModel, small: LanguageModel
) -> None:
    for rule, longest in (("foreal,n=5", 5), ("first-n,n=1000", MOST)):
        result = led_by(Talkative, large, small, rule)
        assert result.tokens == MOST
        turns = [each.count for each in result.passages if each.writer == LEADER]
        assert max(turns) == longest
        assert 0 < result.costs[LEADER].dropped <= len(turns)


def test_a_follower_that_is_lost_ends_the_text(large: LanguageModel) -> None:
    params = SamplingParams(max_new_tokens=MOST)
    follower = LostAfter(large, PROMPT, params)
    writers = {LEADER: LocalWriter(large, PROMPT, params), FOLLOWER: follower}
    with pytest.raises(WriterLostError, match="the follower is lost: the line is dead"):
        Collaboration(Foreal(0), writers, MOST).run()


def test_two_vocabularies_meet_at_text(large: LanguageModel, stranger: str) -> None:
    other = draftwood.load(stranger)  # the same letters under other numbers
    result = collaborate(PROMPT, large, other, Foreal(5), max_new_tokens=MOST, exact=False).run()
    assert 0 < result.leader_share < 1
    text = large.tokenizer.decode([t for each in result.passages for t in _ids_for(large, each)])
    assert text == result.text
    alone = collaborate(
        PROMPT, large, other, parse_rule("first-n,n=1000"), max_new_tokens=MOST, exact=False
    )
    assert alone.run().text == large.generate(PROMPT, max_new_tokens=MOST).text


def _ids_for(lm: LanguageModel, passage: Passage) -> list[int]:
    return list(lm.tokenizer(passage.text, add_special_tokens=False)["input_ids"])


def test_across_vocabularies_each_goes_on_behind_the_other(
    large: LanguageModel, stranger: str
) -> None:
    other = draftwood.load(stranger)
    result = collaborate(PROMPT, large, other, Foreal(5), max_new_tokens=MOST, exact=False).run()
    for passage in result.passages:
        lm = large if passage.writer == LEADER else other
        prompt = [*lm.encode(PROMPT), *lm.tokenizer(passage.before)["input_ids"]]
        again = lm.generate(prompt, max_new_tokens=passage.count)
        assert again.token_ids == passage.ids


def test_inside_words_one_vocabulary_is_needed(large: LanguageModel, stranger: str) -> None:
    other = draftwood.load(stranger)
    with pytest.raises(ValueError, match="one vocabulary here; take a model of the follower's"):
        collaborate(PROMPT, large, other, parse_rule("entropy-switch"), exact=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--inexact, in Python exact=False"),
        ({"exact": False, "grammar": "start: /a/"}, "grammar has no meaning for a text that"),
        ({"exact": False, "presence_penalty": 1.0}, "presence_penalty has no meaning"),
    ],
)
def test_options_that_a_turn_cannot_keep_are_refused(
    options: dict[str, Any], message: str, large: LanguageModel
) -> None:
    with pytest.raises(ValueError, match=message):
        collaborate(PROMPT, large, large, Foreal(), **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forel", "there is no rule 'forel'; there are: foreal, entropy-switch"),
        ("foreal,m=1", "has no knob 'm'; it has: n, p"),
        ("foreal,n=1.5", "foreal's n must be a whole number, got '1.5'"),
        ("foreal,p=2", "foreal's p must be from 0 to 1, got 2"),
        ("foreal,p=nan", "foreal's p must be from 0 to 1, got nan"),
        ("random,share=x", "random's share must be a number, got 'x'"),
    ],
)
def test_rules_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rule(text)


def test_knobs_are_read() -> None:
    assert parse_rule("foreal, n=25, p=0.5") == Foreal(25, 0.5)


def test_a_kept_session_computes_only_what_differs() -> None:
    model = table_lm(TABLES[LEADER]).model
    kept = KeptSession(model)
    session, known = kept.start([0, 1, 2])
    assert known == 0
    session.extend([0, 1, 2])
    kept.remember(session, [0, 1, 2])
    session.close()
    session, known = kept.start([0, 1, 1, 1])
    assert (known, session.length) == (2, 2)


def test_a_judge_tells_the_mean_log_probability() -> None:
    lm = table_lm(TABLES[LEADER])
    judge = LocalWriter(lm, [0], SamplingParams(temperature=1.0))
    passage = Passage(FOLLOWER, "", judge.vocabulary)
    passage.tokens += [writers_module.WrittenToken("a", 0), writers_module.WrittenToken(".", 1)]
    row = TABLES[LEADER][0].astype(np.float64)
    chances = row - np.log(np.exp(row).sum())
    for _ in range(2):  # the second time from its cache
        assert judge.judge([passage]) == pytest.approx((chances[0] + chances[1]) / 2, abs=1e-6)


def test_a_judge_reads_a_word_again_where_two_vocabularies_meet_inside_it() -> None:
    lm = table_lm(TABLES[LEADER])
    tokenizer = Tokenizer(models.BPE({"a": 0, ".": 1, "aa": 2}, [("a", "a")]))
    tokenizer.decoder = decoders.ByteLevel()
    lm.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    judge = LocalWriter(lm, [0], SamplingParams(temperature=1.0))
    passages = [Passage(FOLLOWER, before, "another") for before in ("", ".a", ".aa", ".aa")]
    for passage, text in zip(passages, (".a", "a", "", "aa"), strict=True):
        passage.tokens.append(writers_module.WrittenToken(text))
    assert [judge.tokens(passages[:count]) for count in (1, 2, 3, 4)] == [
        *([1, 0], [1, 2], [1, 2], [1, 2, 2])
    ]
    rows = TABLES[LEADER].astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    wanted = ((logs[0, 1] + logs[1, 0]) / 2, logs[1, 2], 0.0, logs[2, 2])
    for count, chance in enumerate(wanted, 1):
        for _ in range(2):  # the second time from its cache
            assert judge.judge(passages[:count]) == pytest.approx(chance, abs=1e-6)


class Impatient(CollaborationRule):
    """Takes the follower's first token twice, and lets nobody replace it."""

    name = "impatient"
    summary = source = ""

    def course(self, chance: Any) -> Any:
        first = yield TurnRequest(FOLLOWER, 1)
        second = yield TurnRequest(LEADER, 1, instead=True)
        assert second.writer == LEADER
        back = yield first
        assert back is first


def test_a_passage_that_was_replaced_can_come_back() -> None:
    result = written(Impatient(), 3)
    (passage,) = result.passages
    assert passage.writer == FOLLOWER
    costs = result.costs
    assert (costs[FOLLOWER].kept, costs[FOLLOWER].dropped) == (1, 0)
    assert (costs[LEADER].kept, costs[LEADER].dropped) == (0, 1)
    assert replace(result).text == passage.text
