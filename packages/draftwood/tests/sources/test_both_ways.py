"""Every source of the package, found by walking its folder: the same trees in C++ and in Python."""

import importlib
import pkgutil
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import draftwood.sources
from draftwood.arrays import as_array
from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.models.verified import PredictedText
from draftwood.native import compiler, drafting, library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import BigramPrior, Datastore, EarlierTexts, NearestState, NGrams, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.auto.n_grams import MAX_ORDER
from draftwood.sources.head_in_pytorch import HeadInPytorchSource
from draftwood.sources.int4_self_draft import Int4SelfDraftSource
from draftwood.sources.merger import Merger
from draftwood.sources.prediction import PredictionSource
from draftwood.sources.source import CompiledSource, Evidence, Source, SourceSession
from draftwood.sources.token_index import TokenIndex
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from merged_trees import BUDGET, VOCAB, model_of, trees
from reference.merger import PythonMerger
from reference.sessions import InPython, start
from thinning import thinned

FILES = compiler.SOURCES / "sources"
SLOW = {each.name for each in (NearestState, Int4SelfDraftSource, TrainedHeadSource)}
SLOW.add(HeadInPytorchSource.name)
"""They read hidden states that no table has; see ``test_nearest_state`` and others."""

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


def sources_of(modules: list[ModuleType]) -> dict[str, type]:
    """Classes with the form of a source, by name."""
    return {
        each.name: each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and each.__module__ == module.__name__
        and all(hasattr(each, part) for part in ("name", "reads_logits"))
        and (hasattr(each, "start") or hasattr(each, "native"))
    }


def registered() -> dict[str, type]:
    found = pkgutil.walk_packages(draftwood.sources.__path__, "draftwood.sources.")
    known = sources_of([importlib.import_module(module.name) for module in found])
    return {name: each for name, each in known.items() if name not in SLOW}


SETTINGS: Mapping[type, Mapping[str, dict[str, Any]]] = {
    Suffix: {"as it is": {}, "short": {"longest": 2, "shortest": 2}, "long": {"longest": 80}},
    EarlierTexts: {
        "as it is": {},
        "that forgets": {"max_tokens": 200, "shortest": 1},
        "that forgets at once": {"max_tokens": 1, "shortest": 1},
    },
    Datastore: {"as it is": {}, "short": {"longest": 3, "shortest": 1}, "long": {"longest": 64}},
    NGrams: {
        "as it is": {},
        "that forgets": {"order": 3, "fresh": 0.4, "max_contexts": 30},
        "kept": {"keep": True, "max_contexts": 50},
        "the newest rows": {"order": 1, "fresh": 1.0},
        "as long as C++ can": {"order": MAX_ORDER},
    },
}
"""Settings of each source to compare in C++ and Python."""


def settings_of(source: type) -> Mapping[str, dict[str, Any]]:
    return SETTINGS.get(source, {"as it is": {}})


def texts_of(model: TableModel) -> list[list[int]]:
    """Continue the table from each of its tokens, with some chance; one token is unknown."""
    chance, found = random.Random(0), []
    likely = np.argsort(-as_array(model.logits)[:, : VOCAB - 1], kind="stable")[:, :3].tolist()
    for first in range(VOCAB - 1):
        text = [first]
        while len(text) < 50:
            text.append(chance.choice(likely[text[-1]]))
        found.append(text)
    return found


def made(source: type, settings: dict[str, Any], model: TableModel) -> Source:
    if source is BigramPrior:
        return BigramPrior.of(model, ids=range(VOCAB - 5), ranks=8)
    if source is PredictionSource:
        return PredictionSource(PredictedText([each for text in texts_of(model) for each in text]))
    if source is Datastore:
        return Datastore(TokenIndex.of(texts_of(model), VOCAB - 1), **settings)
    return source(**settings)


CASES = {
    f"{name}, {title}": (source, settings)
    for name, source in registered().items()
    for title, settings in settings_of(source).items()
}

Way = Callable[..., Merger | PythonMerger]


def requests(
    way: Way, sources: Callable[[TableModel], tuple[Source, ...]], seed: int, temperature: float
) -> list[Any]:
    """Trees of three requests in turn with the same sources."""
    model, found = model_of(seed), []
    estimator = Estimator.for_sampling() if temperature else Estimator()
    kept = sources(model)
    for number in range(3):
        request = DraftRequest(Sampling(temperature), Rng(seed), model.start())
        found += trees(way(kept, estimator, request), request, model, seed + number // 2)
    return found


def assert_same(ours: list[Any], theirs: list[Any]) -> int:
    """Returns how many guesses there are."""
    for (one, names), (other, their_names) in zip(ours, theirs, strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        assert one.chances == pytest.approx(other.chances, rel=1e-9)
        assert names == their_names
    return sum(len(grown.tokens) - 1 for grown, _ in ours)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_a_source_gives_the_same_trees_both_ways(case: str, temperature: float) -> None:
    source, settings = CASES[case]
    guesses = 0
    for seed in range(3):
        python, native = (
            requests(way, lambda model: (made(source, settings, model),), seed, temperature)
            for way in (PythonMerger, Merger)
        )
        guesses += assert_same(python, native)
    assert guesses > 100 or settings == {"max_tokens": 1, "shortest": 1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("case", thinned(CASES, 8))
def test_a_source_of_python_among_those_of_the_library(case: str, temperature: float) -> None:
    """The same trees whichever of them C++ has to ask Python for."""
    source, settings = CASES[case]

    def all_of(model: TableModel) -> tuple[Source, ...]:
        first, *others = (made(each, {}, model) for each in registered().values() if each != source)
        return (first, made(source, settings, model), *others)

    def with_own(model: TableModel) -> tuple[Source, ...]:
        first, own, *others = all_of(model)
        return (first, InPython(own), *others)

    python = requests(PythonMerger, all_of, 1, temperature)
    assert assert_same(python, requests(Merger, with_own, 1, temperature)) > 100
    assert_same(python, requests(Merger, all_of, 1, temperature))


def faults(sources: Mapping[str, type], files: Path) -> list[str]:
    """List what is missing of the sources' C++ forms."""
    model, found = model_of(0), []
    request = DraftRequest(Sampling(), Rng(0), model.start())
    for name, source in sources.items():
        source = made(source, next(iter(settings_of(source).values())), model)
        if not isinstance(source, CompiledSource):
            found.append(f"{name}: no native()")
        elif source.native(request).kind != name or name not in drafting.kinds():
            found.append(f"{name}: C++ has no such kind")
        elif not (files / f"{name.replace('-', '_')}.cpp").is_file():
            found.append(f"{name}: no file")
    known = {*sources, *SLOW}
    stems = {name.replace("-", "_") for name in known}
    found += [f"{path.name}: no source" for path in files.glob("*.cpp") if path.stem not in stems]
    return found + [f"{kind}: no source" for kind in drafting.kinds() if kind not in known]


def test_every_source_has_a_file_and_every_file_a_source() -> None:
    assert len(registered()) >= 4
    assert not faults(registered(), FILES)


class Fourth:
    """A source that somebody adds without a C++ form."""

    name = "fourth"
    reads_logits = False

    def start(self, request: DraftRequest) -> SourceSession:
        return start(Suffix(), request)


def test_a_source_without_a_file_and_a_file_without_a_source_are_found(tmp_path: Path) -> None:
    planted = ModuleType("planted")
    planted.Fourth = type("Fourth", (Fourth,), {"__module__": "planted"})
    assert list(sources_of([planted])) == ["fourth"]
    sources = {**registered(), **sources_of([planted])}
    assert faults(sources, FILES) == ["fourth: no native()"]
    for path in FILES.glob("*.cpp"):
        (tmp_path / path.name).write_text("")
    (tmp_path / "fifth.cpp").write_text("")
    (tmp_path / "suffix.cpp").unlink()
    assert sorted(faults(registered(), tmp_path)) == ["fifth.cpp: no source", "suffix: no file"]


@pytest.mark.parametrize("max_tokens", [1000, 150])
def test_requests_that_run_at_once_leave_the_same_texts_behind(max_tokens: int) -> None:
    """Texts are read while they grow, and forgotten while they are read."""
    model, results = model_of(2), []
    for way in (PythonMerger, Merger):
        chance, found = random.Random(0), []
        sources = (EarlierTexts(max_tokens=max_tokens, shortest=1),)
        words = [[chance.randrange(VOCAB) for _ in range(5)] for _ in range(4)]
        running = []
        for number in range(12):
            request = DraftRequest(Sampling(), Rng(number), model.start())
            running.append(way(sources, Estimator(), request))
            for merged in random.Random(number).sample(running, min(3, len(running))):
                text = [token for _ in range(5) for token in chance.choice(words)]
                tree = DraftTree.chain(text)
                merged.learn(VerifiedTree(tree, range(len(text))), quiet=False)
                grown = merged.grow(chance.choice(words)[0], BUDGET)
                found.append((grown, [set(names) for names in merged.proposers(len(grown.tokens))]))
        results.append(found)
    assert assert_same(*results) > 50


@pytest.mark.parametrize("kinds", [3, 60])
def test_random_candidates_are_merged_alike(kinds: int) -> None:
    """A source of random candidates of several kinds, some of them another source's: all that
    C++ reads of Python."""

    class Random:
        name, reads_logits = "random", False

        def start(self, request: DraftRequest) -> "Random":
            return self

        def learn(self, news: object) -> None:
            """There is nothing to remember."""

        def begin(self, root: int) -> tuple[int, ...]:
            return (root,)

        def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
            return (*state, token)

        def candidates(self, state: tuple[int, ...]) -> list[Any]:
            chance, found = random.Random(hash(state)), []
            for _ in range(chance.randrange(kinds)):
                tokens = chance.sample(range(VOCAB), chance.randrange(VOCAB))
                name = chance.choice(["random", "suffix", "another"])
                kind = Evidence(name, chance.randrange(kinds))
                found.append((kind, {token: chance.random() / 5 for token in tokens}))
            return found

    for temperature in (0.0, 1.0):
        python, native = (
            requests(way, lambda model: (Suffix(), Random(), NGrams()), 1, temperature)
            for way in (PythonMerger, Merger)
        )
        assert assert_same(python, native) > 100
