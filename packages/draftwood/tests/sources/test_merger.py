"""The same trees in C++ and in Python."""

import time
from collections.abc import Sequence
from threading import Thread

import pytest

from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.models.model import ModelOutput
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import BigramPrior, NGrams, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.auto.n_grams import MAX_ORDER
from draftwood.sources.merger import Grown, Merger
from draftwood.sources.source import Source, SourceSession
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from merged_trees import BUDGET, VOCAB, model_of, trees
from reference.merger import PythonMerger
from reference.sessions import start
from roads import normals

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


def sources_of(model: TableModel) -> dict[str, Sequence[Source]]:
    prior = BigramPrior.of(model, ids=range(VOCAB - 5), ranks=8)
    return {
        "suffix": (Suffix(),),
        "short suffix": (Suffix(longest=2, shortest=2),),
        "n-grams": (NGrams(),),
        "n-grams that forget": (NGrams(order=3, fresh=0.4, max_contexts=30),),
        "the newest rows": (NGrams(order=1, fresh=1.0),),
        "prior": (prior,),
        "auto": (Suffix(), NGrams(), prior),
        "another order": (prior, NGrams(order=4), Suffix()),
    }


def both(name: str, seed: int, temperature: float) -> list[list[tuple[Grown, list[set[str]]]]]:
    model = model_of(seed)
    estimator = Estimator.for_sampling() if temperature else Estimator(strength=5.0)
    results = []
    for kind in (PythonMerger, Merger):
        request = DraftRequest(Sampling(temperature), Rng(seed), model.start())
        results.append(
            trees(kind(sources_of(model)[name], estimator, request), request, model, seed)
        )
    return results


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", list(sources_of(model_of(0))))
def test_trees_are_the_same(name: str, temperature: float) -> None:
    nodes = 0
    for seed in range(4):
        python, native = both(name, seed, temperature)
        for (ours, names), (theirs, their_names) in zip(python, native, strict=True):
            assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
            assert ours.chances == pytest.approx(theirs.chances, rel=1e-9)
            assert names == their_names
            nodes += len(ours.tokens) - 1
    assert nodes > 200


def test_another_setting_gives_other_trees() -> None:
    """The comparison can fail."""
    model, results = model_of(1), []
    for kind, strength in ((PythonMerger, 40.0), (Merger, 20.0)):
        request = DraftRequest(Sampling(), Rng(1), model.start())
        results.append(
            trees(kind((NGrams(),), Estimator(strength=strength), request), request, model, 1)
        )
    assert any(
        ours.tokens != theirs.tokens or ours.chances != pytest.approx(theirs.chances, rel=1e-9)
        for (ours, _), (theirs, _) in zip(*results, strict=False)
    )


def test_cut_distributions_are_learnt_as_they_are_cut() -> None:
    model, results = model_of(2), []
    for kind in (PythonMerger, Merger):
        request = DraftRequest(Sampling(1.0, top_k=3, top_p=0.9), Rng(2), model.start())
        results.append(
            trees(kind((NGrams(),), Estimator.for_sampling(), request), request, model, 2)
        )
    assert [grown.tokens for grown, _ in results[0]] == [grown.tokens for grown, _ in results[1]]


def test_tables_that_are_kept_serve_the_next_request() -> None:
    model, n_grams = model_of(3), NGrams(keep=True)
    sizes = []
    for _ in range(2):
        merged = Merger((n_grams,), Estimator(), DraftRequest(Sampling(), Rng(0), model.start()))
        sizes.append(len(merged.grow(5, BUDGET).tokens))
        chain = DraftTree.chain(list(range(VOCAB)))
        merged.learn(
            VerifiedTree(chain, range(VOCAB), ModelOutput(model.logits[chain.tokens])), quiet=False
        )
    assert sizes[0] == 1 < sizes[1]


class Mine(Suffix):
    """A source of the library with a session of its own in Python."""

    def start(self, request: DraftRequest) -> SourceSession:
        return start(Suffix(), request)


def test_a_source_with_a_session_in_python_is_asked_there() -> None:
    request = DraftRequest(Sampling(), Rng(0), model_of(0).start())
    for source, is_asked in ((Suffix(), False), (Mine(), True)):
        assert Merger((source,), Estimator(), request).in_python == is_asked


def test_n_grams_are_as_long_as_the_library_has_them() -> None:
    assert library.library().draftwood_max_order() == MAX_ORDER
    with pytest.raises(ValueError, match=f"order must be at most {MAX_ORDER}"):
        NGrams(order=MAX_ORDER + 1)


def test_places_with_many_successors_are_found_in_both() -> None:
    """A state that many tokens follow is searched another way, and says nothing once they are too
    many.
    """
    vocab = 90
    model = TableModel(*normals(4, (vocab, vocab)))
    text = [token for other in range(45) for token in (80, 81, 82, other)]
    text += [token for other in range(20) for token in (80, 83, other)] + [
        80,
        83,
        5,
        80,
        83,
        19,
        80,
    ]
    found: list[list[Grown]] = []
    for kind in (PythonMerger, Merger):
        merged = kind((Suffix(),), Estimator(), DraftRequest(Sampling(), Rng(0), model.start()))
        merged.learn(VerifiedTree(DraftTree.chain(text), range(len(text))), quiet=False)
        found.append([merged.grow(root, BUDGET) for root in (83, 81, 82, 80, 5)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert len(found[0][0].tokens) > 1


def test_missing_rows_are_refused() -> None:
    model = model_of(0)
    merged = Merger((NGrams(),), Estimator(), DraftRequest(Sampling(), Rng(0), model.start()))
    with pytest.raises(ValueError, match="2 rows for 3 nodes"):
        merged.learn(
            VerifiedTree(DraftTree.chain([1, 2, 3]), [0], ModelOutput(model.logits[:2])),
            quiet=False,
        )


def test_threads_share_tables() -> None:
    model, n_grams, failed = model_of(5), NGrams(keep=True), []

    def work(seed: int) -> None:
        try:
            request = DraftRequest(Sampling(), Rng(seed), model.start())
            trees(Merger((n_grams,), Estimator(), request), request, model, seed)
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("pattern", [[7], [7, 8], [*range(30)], [7, 7, 8, 7, 9]])
def test_trees_are_the_same_behind_matches_longer_than_any_that_is_told(pattern: list[int]) -> None:
    text = [*pattern * (200 // len(pattern)), 39, *pattern * (150 // len(pattern))]
    found = []
    for kind in (PythonMerger, Merger):
        model = model_of(0)
        request = DraftRequest(Sampling(), Rng(0), model.start())
        merged = kind((Suffix(),), Estimator(), request)
        merged.learn(
            VerifiedTree(DraftTree.chain(text), range(len(text)), ModelOutput(model.logits[text])),
            quiet=False,
        )
        roots = [*pattern, 39, *pattern, 38, pattern[0]]
        grown = []
        for root in roots:
            grown.append(merged.grow(root, BUDGET))
            merged.learn(
                VerifiedTree(DraftTree.chain([root]), [0], ModelOutput(model.logits[[root]])),
                quiet=False,
            )
        found.append(grown)
    for ours, theirs in zip(*found, strict=True):
        assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
        assert ours.chances == pytest.approx(theirs.chances, rel=1e-9)
    assert len(found[0][0].tokens) > 5


def test_one_token_repeated_is_learnt_in_linear_time() -> None:
    """A step along every suffix would make this 34 billion steps; 64 for each token take a tenth of
    a second.
    """
    length = 1 << 18
    request = DraftRequest(Sampling(), Rng(0), model_of(0).start())
    merged = Merger((Suffix(),), Estimator(), request)
    tree = DraftTree.chain([7] * length)
    start = time.process_time()
    merged.learn(VerifiedTree(tree, range(length)), quiet=True)
    assert time.process_time() - start < 20.0
