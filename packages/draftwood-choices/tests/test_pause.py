"""Pausing: the paper's rule, drafts that change none of its texts, and the learnt entropy."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from command import refused, run
from draftwood import SamplingParams, engine
from draftwood.drafters import Drafter, DraftModel, Nothing
from draftwood.engine import Options
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.verifiers import Match, Verifier
from draftwood_choices import pause
from draftwood_choices.pause import CANDIDATES, LENGTH, entropy
from draftwood_choices.pause_entropy import FEWEST, MUCH, best_entropy
from draftwood_methods.drafters import MaskedInPass
from law_cases import contextual
from roads import tiny_llama
from test_momentum import DRAFTED, PROMPT, VOCAB
from tiny_heads import tiny_masked

pytestmark = pytest.mark.usefixtures("unchecked")
TOKENS = 40
SEED, TABLE = 7, 6
CHAIN = Widths((1, 1, 1))
BOUNDS = (0.0, 1.0, 1.4, 99.0)
"""Entropies from which texts pause: always, at times, seldom, never."""


def models() -> dict[str, Model]:
    """Models whose text changes with how far it looks ahead."""
    network = tiny_llama(SEED, layers=2, vocab=VOCAB)
    native = {"native": NativeModel(network)} if library.available() else {}
    return {"table": contextual(VOCAB, 2, TABLE)[0], **native}


@dataclass(frozen=True)
class Masked(Sampling):
    """A sampler under a constraint that allows all tokens; implements ``MaskedSampler``."""

    @property
    def unmasked(self) -> Sampling:
        return Sampling(rules=self.rules)

    def allowed(self, context: Context) -> None:
        """Anything goes."""


def chances(model: Model, text: Sequence[int]) -> np.ndarray:
    """Probabilities of what comes next, by a pass over the whole text."""
    session = model.start()
    row = session.extend(text).rows[-1].astype(np.float64)
    session.close()
    shares = np.exp(row - row.max())
    return shares / shares.sum()


def score(model: Model, text: list[int], token: int, length: int, end: int | None) -> float:
    """Mean log-probability of a token and the likeliest ones behind it."""
    logs = [np.log(chances(model, text)[token])]
    text = [*text, token]
    while len(logs) <= length and text[-1] != end:
        row = chances(model, text)
        text.append(int(row.argmax()))
        logs.append(np.log(row.max()))
    return float(np.mean(logs))


def by_definition(
    model: Model, bound: float, length: int = LENGTH, end: int | None = None
) -> list[int]:
    """The paper's text, token by token; the first comes with the prompt's pass."""
    made = [int(chances(model, PROMPT).argmax())]
    while len(made) < TOKENS and made[-1] != end:
        text, left = [*PROMPT, *made], min(length, TOKENS - len(made) - 1)
        row = chances(model, text)
        if entropy(row) < bound or left < 1:
            made.append(int(row.argmax()))
            continue
        top = np.argsort(-row, kind="stable")[:CANDIDATES].tolist()
        made.append(max(top, key=lambda token: score(model, text, token, left, end)))
    return made


def written(
    model: Model, drafter: Drafter, verifier: Verifier, bound: float, end: int | None = None
) -> tuple[list[int], int, int]:
    """Tokens of a text, its accepted draft tokens, and its passes."""
    stops = frozenset[int]() if end is None else frozenset({end})
    options = Options(Sampling(rules={"pause": bound}), TOKENS, stops, exact=False)
    steps = list(engine.generate(model, drafter, verifier, PROMPT, options))
    tokens = [token for step in steps for token in step.tokens]
    return tokens, sum(step.accepted for step in steps), sum(step.runs for step in steps)


@pytest.fixture(autouse=True)
def one_nat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learnt entropy is 1, so that strengths are nats; not of commands."""
    if "target" not in request.fixturenames:
        monkeypatch.setattr("draftwood_choices.pause_entropy.learnt_entropy", lambda model: 1.0)


@pytest.mark.parametrize("name", ["table", "native"])
@pytest.mark.parametrize("end", [None, 6])
def test_texts_are_those_of_the_definition(name: str, end: int | None) -> None:
    model = models().get(name) or pytest.skip("no C++ compiler")
    for bound in BOUNDS:
        expected = by_definition(model, bound, end=end)
        assert written(model, Nothing(), Match(), bound, end)[0] == expected
    greedy = Options(Sampling(), TOKENS, frozenset() if end is None else frozenset({end}))
    plain = [
        t for s in engine.generate(model, Nothing(), Match(), PROMPT, greedy) for t in s.tokens
    ]
    assert by_definition(model, 99.0, end=end) == plain


@pytest.mark.parametrize("name", ["table", "native"])
def test_other_rules_write_other_texts(name: str) -> None:
    """The definition is told from greedy decoding, and from looking less far ahead."""
    model = models().get(name) or pytest.skip("no C++ compiler")
    texts = [by_definition(model, 0.0, length) for length in (LENGTH, 1)]
    assert len({*map(tuple, texts), tuple(by_definition(model, 99.0))}) == 3


@pytest.mark.parametrize("name", ["table", "native"])
@pytest.mark.parametrize(("drafter", "verifier"), DRAFTED, ids=lambda part: part.name)
def test_drafted_texts_are_those_without_drafts(
    name: str, drafter: Drafter, verifier: Verifier
) -> None:
    model, accepted = models().get(name) or pytest.skip("no C++ compiler"), 0
    for bound in BOUNDS:
        plain, rolled_out, passes = written(model, Nothing(), Match(), bound)
        drafted, own, fewer = written(model, drafter, verifier, bound)
        assert drafted == plain
        assert fewer <= passes
        accepted += own - rolled_out
    # what these would draft right, roll-outs have found before
    is_poor = isinstance(drafter, DraftModel) and (name == "native" or drafter.shape == CHAIN)
    assert accepted > 0 or is_poor, "nothing was accepted, so nothing is tested"


@pytest.mark.parametrize("bound", BOUNDS)
def test_passes_of_roll_outs_count_and_their_tokens_are_drafts(bound: float) -> None:
    """Each token takes a pass and those of its roll-outs, but tokens known from the last one."""
    model = models()["table"]
    text, passes = by_definition(model, bound), 1
    for made in range(1, TOKENS):
        pauses = entropy(chances(model, [*PROMPT, *text[:made]])) >= bound
        passes += 1 + pauses * min(LENGTH, TOKENS - made - 1)
    tokens, accepted, runs = written(model, Nothing(), Match(), bound)
    assert tokens == text
    assert runs == passes - accepted
    assert (accepted > 0) == (bound == 1.4)  # from 1 down nearly every token pauses


@pytest.mark.parametrize("every", [2, 3, 7])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_text_that_gives_its_cache_back_stays_the_same(every: int, is_lost: bool) -> None:
    """Between passes, and in the place of one that was planned and lost."""
    model = models().get("native") or pytest.skip("no C++ compiler")
    drafter, verifier = DRAFTED[0]
    options = Options(Sampling(rules={"pause": 1.0}), TOKENS, exact=False)
    text, tokens, passes = engine.Sequence(model, drafter, verifier, PROMPT, options), [], 0
    while text.finish_reason is None:
        if passes and passes % every == 0 and not text.prompt_left:
            if is_lost:
                text.plan()
            text.preempt()
        inputs = text.plan()
        passes += 1
        outputs = inputs[0].runner.forward(inputs)
        tokens += [token for step in text.commit(outputs, 0.0) for token in step.tokens]
    text.close()
    assert tokens == by_definition(model, 1.0)


@pytest.mark.parametrize(
    "sampler", [Sampling(0.5, rules={"pause": 1.0}), Masked(rules={"pause": 1.0})]
)
def test_texts_that_are_drawn_or_constrained_are_refused(sampler: Sampling) -> None:
    options = Options(sampler, 8, exact=False)
    with pytest.raises(ValueError, match="set temperature 0, and leave grammars and schemas out"):
        list(engine.generate(models()["table"], Nothing(), Match(), PROMPT, options))


@pytest.mark.parametrize(
    "more", [{"temperature": 0.5}, {"json_schema": {"type": "object"}}, {"grammar": 'start: "a"'}]
)
def test_options_that_it_does_not_go_with_are_refused_with_the_request(more: Any) -> None:
    SamplingParams(rules={"pause": 1.0}, exact=False)
    with pytest.raises(ValueError, match="set temperature 0, and leave grammars and schemas out"):
        SamplingParams(rules={"pause": 1.0}, exact=False, **more)


def test_time_of_distributions_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions of drafted trees, and of roll-outs."""
    calls, probs = list[None](), Sampling.probs

    def slow(*args: Any) -> Any:
        calls.append(time.sleep(0.002))
        return probs(*args)

    monkeypatch.setattr(Sampling, "probs", slow)
    options = Options(Sampling(rules={"pause": 1.0}), 8, exact=False)
    steps = list(engine.generate(models()["table"], Nothing(), Match(), PROMPT, options))
    assert len(calls) > 8
    assert sum(each.seconds["verify"] for each in steps) > 0.002 * len(calls)


def test_the_best_entropy_is_that_of_all_that_are_tried() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        entropies = random.integers(0, 12, FEWEST) / 4
        first = random.random(FEWEST) > entropies / 4
        tried = {
            bound: ((entropies < bound) == first).mean() for bound in np.unique(entropies).tolist()
        }
        bound, accuracy = best_entropy(entropies, first)
        assert tried[bound] == pytest.approx(max(tried.values()))
        assert accuracy == pytest.approx(max(tried.values()))


@pytest.mark.parametrize("first", [np.zeros(FEWEST, bool), np.ones(FEWEST, bool)])
def test_what_teaches_nothing_is_refused(first: np.ndarray) -> None:
    mixed = np.arange(FEWEST - 1) % 2 == 0
    for given in (first, mixed):
        with pytest.raises(ValueError, match="at least 200 tokens of which some are the model's"):
            best_entropy(np.ones(len(given)), given)


def test_tune_learns_the_entropy_that_texts_need(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    asked = ("generate", "hello hello", "--model", target, "--max-new-tokens", "30")
    ruled = (*asked, "--rules", "pause")
    assert "--inexact" in refused(*ruled)
    assert "draftwood tune --pause" in refused(*ruled, "--inexact")
    learnt = ("tune", "--pause", "--model", target)
    found = json.loads(run(*learnt, "--seconds", "0.5", "--json").stdout)
    assert found["tokens"] >= FEWEST
    assert (found["paused"] > MUCH) == ("a text such as the model writes" in found.get("note", ""))
    texts = {
        run(*ruled, "--inexact", "--method", method).stdout
        for method in ("plain", "auto", "lookup")
    }
    assert len(texts) == 1
    assert "leave --method" in refused(*learnt, "--method", "auto")
    (short := tmp_path / "short.txt").write_text("a few words")
    assert "at least 200 tokens" in refused("tune", "--pause", str(short), "--model", target)
    for file in (tmp_path / "home" / "pauses").iterdir():
        file.write_text("{}")
    assert "is damaged" in refused(*ruled, "--inexact")


def test_the_rule_is_listed_with_its_promise() -> None:
    listed = json.loads(run("methods", "--package", "choices", "--json").stdout)
    own = MappingProxyType({each["name"]: each for each in listed})["pause"]
    assert (own["promise"], own["option"]) == ("trades quality", "--rules pause=1 --inexact")
    assert pause.PAUSE.executor is not None


@pytest.mark.skipif(not library.available(), reason="the native library is missing")
@pytest.mark.parametrize("bound", BOUNDS)
def test_rows_that_a_drafter_attaches_are_run_and_change_nothing(bound: float) -> None:
    model = NativeModel(tiny_llama(SEED, layers=2, vocab=VOCAB))
    drafter = MaskedInPass(tiny_masked(model, ()), model, BestFirst(8, 3))
    options = Options(Sampling(rules={"pause": bound}), TOKENS, exact=False)
    told = [
        [*engine.generate(model, each, Match(), PROMPT, options)] for each in (drafter, Nothing())
    ]
    texts = [[token for step in steps for token in step.tokens] for steps in told]
    assert texts[0] == texts[1]
    plain = Options(Sampling(), TOKENS)
    drafted = sum(step.drafted for step in engine.generate(model, drafter, Match(), PROMPT, plain))
    assert bound < 90 or sum(step.drafted for step in told[0]) == drafted > 0
