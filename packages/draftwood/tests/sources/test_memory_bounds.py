"""Memory beyond a request stays small, and quick to look up."""

import ctypes
import gc
import random
import statistics
import time

import pytest

from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import Datastore, EarlierTexts
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Merger
from draftwood.sources.source import Source
from draftwood.sources.token_index import TokenIndex
from draftwood.tree import DraftTree
from merged_trees import model_of

VOCAB, TEXT = 20_000, 1000
BYTES_PER_TOKEN, MICROSECONDS = 64, 10.0
WIDE = Budget(lambda nodes: 1.0 + 1e-4 * nodes, per_draft_token=0.0, max_draft_tokens=100)

LIBC = ctypes.CDLL(None)

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


def texts(count: int) -> list[list[int]]:
    """Phrases of a few thousand, frequent and rare ones, with new words in between."""
    chance = random.Random(0)
    phrases = [
        [int(VOCAB ** chance.random()) - 1 for _ in range(chance.randrange(2, 12))]
        for _ in range(5000)
    ]
    found = []
    for _ in range(count):
        text: list[int] = []
        while len(text) < TEXT:
            text += phrases[int(len(phrases) ** chance.random()) - 1]
            if chance.random() < 0.5:
                text.append(chance.randrange(VOCAB))
        found.append(text[:TEXT])
    return found


def merged(source: Source) -> Merger:
    request = DraftRequest(Sampling(), Rng(0), model_of(0).start())
    return Merger((source,), Estimator(), request)


def learn(merger: Merger, text: list[int]) -> None:
    merger.learn(VerifiedTree(DraftTree.chain(text), range(len(text))), quiet=True)


class Allocated(ctypes.Structure):
    """``mallinfo2`` of the C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "mapped"),
            *("usmblks", "fsmblks", "used", "fordblks", "keepcost"),
        )
    )


def allocated() -> int:
    """Bytes that the process has asked for and not given back."""
    if not hasattr(LIBC, "mallinfo2"):
        pytest.skip("the C library does not tell what is allocated")
    LIBC.mallinfo2.restype = Allocated
    gc.collect()
    found = LIBC.mallinfo2()
    return found.used + found.mapped


@pytest.mark.parametrize("length", [300, 480, 520, 990, 1500])
def test_the_newest_of_earlier_texts_is_remembered_however_long(length: int) -> None:
    source, chance = EarlierTexts(max_tokens=1000), random.Random(1)
    for _ in range(4):
        text = [chance.randrange(VOCAB) for _ in range(length)]
        learn(merged(source), text)
        again = merged(source)
        learn(again, text[-40:-10])
        assert list(again.grow(text[-10], WIDE).tokens)[1:6] == text[-9:-4]


def microseconds(source: Source, text: list[int]) -> float:
    """Microseconds per node of a tree: its look-up, and all that is done with it."""
    merger, spent = merged(source), []
    for token in text:
        since = time.thread_time()
        grown = merger.grow(token, WIDE)
        spent.append((time.thread_time() - since) / len(grown.tokens))
        learn(merger, [token])
    return 1e6 * statistics.median(spent)


@pytest.mark.proof
def test_earlier_texts_take_little_memory_also_while_they_forget() -> None:
    source, written = EarlierTexts(max_tokens=45_000), texts(60)
    before = most = allocated()
    for number, text in enumerate(written):
        learn(merged(source), text)
        if number % 5 == 0:
            most = max(most, allocated())
    assert most - before < BYTES_PER_TOKEN * source.max_tokens
    assert microseconds(source, written[-1][:300]) < MICROSECONDS


def test_a_datastore_takes_little_memory_and_time() -> None:
    written = texts(40)
    index = TokenIndex.of(written, VOCAB)
    arrays = (index.starts, index.rows, index.following, index.shared)
    assert sum(array.nbytes for array in arrays) < 10 * len(written) * TEXT + 4 * VOCAB
    assert microseconds(Datastore(index), written[7][:300]) < MICROSECONDS
