"""Every method to the last token: of the model's context, with rotary and with learned positions,
and of the text.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftwood import engine, methods
from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, MultiSource, VerifiedTree, multi_source
from draftwood.engine import Options, generate_batch
from draftwood.methods import Method
from draftwood.models.model import Model, ModelOutput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import BestFirst, Independent, Paths, Sequoia, Shape, StochasticBeam, Widths
from draftwood.sources import BigramPrior, EarlierTexts, NGrams, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Merger
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import UNBOUNDED, DraftTree
from draftwood.verifiers import Match
from draftwood_torch.models.transformers import TransformersModel
from reference.merger import PythonMerger
from reference.sessions import InPython
from thinning import thinned
from tiny_heads import tiny_drafter, tiny_mtp

CONTEXT = 32
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
# every guess pays
FREE = Budget(
    lambda nodes: 1.0 + 1e-4 * nodes, per_draft_token=0.0, per_step=0.0, max_draft_tokens=32
)


def tiny_gpt2() -> GPT2LMHeadModel:
    """Learned positions: a position beyond the context is an error."""
    config = GPT2Config(
        vocab_size=64,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=4,
        n_head=4,
        initializer_range=0.3,
        bos_token_id=None,
    )
    config.eos_token_id = None
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


def models() -> dict[str, Model]:
    found: dict[str, Model] = {
        "rotary": TransformersModel(tiny_llama(0, layers=4, context=CONTEXT)),
        "learned": TransformersModel(tiny_gpt2()),
    }
    if library.available():
        found["native"] = NativeModel(tiny_llama(0, layers=4, context=CONTEXT))
    return found


@pytest.fixture(scope="module")
def targets() -> dict[str, Model]:
    return models()


def method_of(name: str, target: Model) -> Method:
    """The method, drafting with the target itself where it takes a draft model, so that nearly all
    is accepted.
    """
    if name in (IN_PYTHON, CALLED_BACK):
        own = EarlierTexts() if name == IN_PYTHON else InPython(EarlierTexts())
        return Method(MultiSource((Suffix(), NGrams(), own), FREE), Match(), name)
    draft = target if "draft-model" in methods.spec(name).needs else None
    trained = tiny_drafter(name, target)
    mtp = tiny_mtp(target) if name in MTP and isinstance(target, NativeModel) else None
    built = methods.build(name, target, draft, curve=FREE.seconds, head=trained, mtp=mtp)
    if name == "auto":
        return Method(
            MultiSource((Suffix(), NGrams(), BigramPrior.of(target)), FREE), built.verifier, name
        )
    return built


IN_PYTHON, CALLED_BACK = "auto, in Python", "auto, a source of it in Python"
NAMES = [*(name for name in methods.known() if name != "plain"), IN_PYTHON, CALLED_BACK]
TRAINED = {name for name in methods.known() if "head" in methods.spec(name).needs}
# these need weights that 4 bits can stand in for, an adapter for some rows of a pass, or a layer
# that the library runs
MTP = {"mtp", "mtp-rsd"}
NATIVE = {"shadow", "auto-shadow", "masked-block", "masked-in-pass", *MTP}


def kinds(name: str) -> tuple[str, ...]:
    """Paths on which a method is tried. A trained head counts positions by itself and grows trees
    in the same way for every verifier, so each is tried with learned positions under one name and
    with rotary ones under the other.
    """
    if name in NATIVE:
        return ("native",)
    if name not in TRAINED:
        return "rotary", "learned", "native"
    return ("native",) if name.endswith("-rsd") else ("learned",)


CASES = [(name, kind) for name in NAMES for kind in kinds(name)]


@cache
def plain_text(target: Model, temperature: float, most: int, prompt: tuple[int, ...]) -> list[int]:
    """Text of plain decoding, the same beside every method."""
    plain = methods.build("plain", target)
    return text_of(target, plain, Sampling(temperature), most, prompt)


def text_of(
    target: Model, method: Method, sampling: Sampling, most: int, prompt: Sequence[int]
) -> list[int]:
    options = Options(sampling, most, seed=3, exact=bool(method.verifier.exact_for))
    sequence = engine.Sequence(target, method.drafter, method.verifier, prompt, options)
    with pytest.MonkeyPatch.context() as patch:
        if method.name == IN_PYTHON:
            patch.setattr(multi_source, "Merger", PythonMerger)
        return [token for _, step in generate_batch([sequence]) for token in step.tokens]


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that has to be cut was grown too deep, and its nodes would get numbers that estimates
    do not know.
    """

    def refuse(tree: DraftTree, depth: int) -> DraftTree:
        assert tree.depth <= depth, f"{tree} is deeper than {depth}"
        return tree

    monkeypatch.setattr(DraftTree, "truncated", refuse)


@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize(("name", "kind"), thinned(CASES, 10))
def test_a_text_reaches_the_end_of_the_context(
    name: str, kind: str, targets: dict[str, Model]
) -> None:
    if kind not in targets:
        pytest.skip("there is no C++ compiler")
    target = targets[kind]
    method = method_of(name, target)
    for length in (3, 6):
        prompt = tuple(PROMPT[:length])
        wanted = plain_text(target, 0.0, 99, prompt)
        assert len(wanted) == CONTEXT - length + 1  # the last one is emitted without being run
        if method.verifier.exact_for:
            assert text_of(target, method, Sampling(), 99, prompt) == wanted
        drawn = text_of(target, method, Sampling(1.0), 99, prompt)
        assert len(drawn) == len(wanted)
        if isinstance(method.verifier, Match):
            assert drawn == plain_text(target, 1.0, 99, prompt)


@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize("name", thinned(NAMES, 10))
def test_a_text_reaches_its_last_token(name: str, targets: dict[str, Model]) -> None:
    target = targets["native" if name in NATIVE else "rotary"]
    method = method_of(name, target)
    for most in (1, 2, 3, 4, 5, 7, 12):
        wanted = plain_text(target, 0.0, most, tuple(PROMPT))
        assert len(wanted) == most
        if method.verifier.exact_for:
            assert text_of(target, method, Sampling(), most, PROMPT) == wanted
        assert len(text_of(target, method, Sampling(1.0), most, PROMPT)) == most


@pytest.mark.usefixtures("uncut")
def test_a_draft_model_of_a_shorter_context_uses_it_up(targets: dict[str, Model]) -> None:
    draft = TransformersModel(tiny_gpt2())
    longer = TransformersModel(tiny_llama(0, layers=2, context=2 * CONTEXT))
    wanted = text_of(longer, methods.build("plain", longer), Sampling(), 50, PROMPT)
    for shape in (Widths((1, 1, 1)), StochasticBeam(3, 4)):
        method = methods.build("speculative", longer, draft, shape)
        options = Options(Sampling(), 50)
        sequence = engine.Sequence(longer, method.drafter, method.verifier, PROMPT, options)
        steps = [step for _, step in generate_batch([sequence])]
        assert [token for step in steps for token in step.tokens] == wanted
        before = len(PROMPT)  # tokens before the root
        for step in steps[1:]:
            assert step.tree is not None
            reach = max(0, CONTEXT - before)
            assert step.tree.depth == min(
                3 if isinstance(shape, Widths) else 4, reach, 50 + len(PROMPT) - before - 2
            )
            before += len(step.tokens)


@pytest.mark.parametrize("max_draft_len", [0, 1, 2, 3, UNBOUNDED])
@pytest.mark.parametrize(
    "shape",
    [
        *(
            Widths((2, 2, 1)),
            Widths((2, 2, 1), "greedy-plus-one"),
            Independent(3, 3),
            StochasticBeam(3, 3),
        ),
        *(
            Sequoia(budget=8, max_depth=3),
            BestFirst(3, 2, 9),
            Paths(((0,), (1,), (0, 0), (0, 0, 0))),
        ),
    ],
    ids=lambda shape: shape.name,
)
def test_a_shape_grows_as_deep_as_there_is_room(shape: Shape, max_draft_len: int) -> None:
    table = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).softmax(-1).numpy()
    asked: list[int] = []

    def expand(tree: DraftTree, first: int) -> np.ndarray:
        asked.append(tree.depth)
        return table[tree.tokens[first:]]

    tree = shape.grow(0, expand, Rng(0), max_draft_len)
    assert tree.depth == min(max_draft_len, 3)
    # a node at the end of the context has no successor to ask for
    assert max(asked, default=-1) < max_draft_len


def learnt(
    merged: Merger | PythonMerger, request: DraftRequest, model: TableModel, rooms: Sequence[int]
) -> list[list[float]]:
    """Chances of a last tree, after others that had little room."""
    text = [1, 2, 3, 4] * 3
    merged.learn(
        VerifiedTree(DraftTree.chain(text), range(len(text)), ModelOutput(model.logits[text])),
        quiet=False,
    )
    found = []
    for max_draft_len in rooms:
        grown = merged.grow(1, FREE, max_draft_len)
        tree = DraftTree.of(grown.tokens, grown.parents)
        assert tree.depth <= max_draft_len
        path = [0]
        while tree.children[path[-1]]:
            path.append(tree.children[path[-1]][0])
        merged.learn(VerifiedTree(tree, path, ModelOutput(model.logits[tree.tokens])), quiet=False)
        found.append(grown.chances)
    return found


def test_both_twins_learn_from_trees_with_little_room() -> None:
    model = TableModel(torch.randn(40, 40, generator=torch.Generator().manual_seed(0)) * 3)
    with_token = (PythonMerger, Merger) if library.available() else (PythonMerger,)
    results = []
    for kind in with_token:
        request = DraftRequest(Sampling(), Rng(0), model.start())
        sources = (Suffix(), NGrams(), BigramPrior.of(model))
        results.append(
            learnt(
                kind(sources, Estimator(strength=2.0), request), request, model, [3, 1, 2, 0, 1, 9]
            )
        )
    assert len(results[0][0]) > len(results[0][1]) > len(results[0][3]) == 1
    for ours, theirs in zip(results[0], results[-1], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
