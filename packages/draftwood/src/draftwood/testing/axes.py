"""Checks of shapes and drafters, for those who add one."""

from collections import Counter

import numpy as np

from draftwood.drafters.drafter import Drafter
from draftwood.drafters.nothing import Nothing
from draftwood.engine.options import Options
from draftwood.engine.scheduler import generate, generate_batch
from draftwood.engine.sequence import Sequence
from draftwood.models.model import Model
from draftwood.optional import backend
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes.shape import Shape
from draftwood.testing.checks import random_law
from draftwood.testing.laws import at_nodes, distance, drafting, emitted_law, target_law
from draftwood.testing.statistics import chi_square
from draftwood.tree import DraftTree
from draftwood.verifiers import GreedyPlusOne, Match, Rejection, Verifier

TREES, LEVEL = 4000, 1e-4
WORDS = 64  # tokens, more than any shape gives one node as children


def check_shape(shape: Shape) -> None:
    """Prove on small tables that a shape's trees are what the shape and they themselves say.

    Structure, draw, nodes, depth and stored rows are looked at; then the distribution of the text
    that an exact verifier makes of the trees is compared with the target's: by enumeration, or by
    chi-square where the shape draws continuous noise. A statement that the trees do not keep fails,
    and so does a tree whose label, order or rows do not tell the truth.

    Raises:
        AssertionError: saying what is wrong.
    """
    rng = np.random.default_rng(8)
    target, draft = (random_law(rng, (3, 3), 1.3) for _ in range(2))
    grow = drafting(shape, draft)
    trees = [grow(Rng(seed)) for seed in range(50)]
    for tree in trees:
        assert tree.token_list[0] == 0, "the root of a tree must be the token it was grown from"
        assert len(tree) - 1 <= shape.nodes, (
            f"{len(tree) - 1} nodes drafted, but nodes says {shape.nodes}"
        )
        _check_draw(shape, tree)
        _check_rows(tree, draft)
    _check_law(_exact_verifier(trees[0]), shape, target, draft)
    _check_statement(shape)


def check_drafter(drafter: Drafter, target: Model | None = None) -> None:
    """Check that a drafter leaves the text alone and keeps what it states.

    It must not change a text, must draft the same from the same seed, must state the draws of its
    trees, and must not let requests disturb each other.

    Args:
        target: a model to draft for; None takes a tiny random Llama of 64 tokens, in PyTorch.

    Raises:
        AssertionError: saying what is wrong.
        ImportError: without a target where PyTorch is missing.
    """
    target = target or _tiny_target()
    prompts = [[1, 5, 7, 3, 5, 7], [2, 2, 2, 9], list(range(20, 40))]

    def text(guesser: Drafter, prompt: list[int], temperature: float) -> list[int]:
        options = Options(Sampling(temperature), 24, seed=3)
        steps = list(generate(target, guesser, Match(), prompt, options))
        for tree in (step.tree for step in steps if step.tree is not None and step.drafted):
            assert tree.draw in guesser.draws, (
                f"a tree says that its siblings were {tree.draw}, but draws names"
                f" {', '.join(sorted(guesser.draws))}"
            )
        return [token for step in steps for token in step.tokens]

    for prompt in prompts:
        assert text(drafter, prompt, 0.0) == text(Nothing(), prompt, 0.0), (
            "the greedy text is not the model's own"
        )
        drawn = text(drafter, prompt, 1.0)
        assert drawn == text(drafter, prompt, 1.0), "the same seed gives different texts"
        assert drawn == text(Nothing(), prompt, 1.0), (
            "the text of a seed is not the model's own: drafts have used up its draws"
        )
    together: list[list[int]] = [[] for _ in prompts]
    options = Options(Sampling(1.0), 24, seed=3)
    sequences = [Sequence(target, drafter, Match(), prompt, options) for prompt in prompts]
    for number, step in generate_batch(sequences):
        together[number] += step.tokens
    alone = [text(drafter, prompt, 1.0) for prompt in prompts]
    assert together == alone, "requests that run side by side disturb each other"


def _tiny_target() -> Model:
    runner = backend("check_drafter without a target")
    return runner.general_model(runner.tiny_llama(0, layers=4))


def _check_law(verifier: Verifier, shape: Shape, target: np.ndarray, draft: np.ndarray) -> None:
    try:
        law = emitted_law(verifier, drafting(shape, draft), target, 2)
    except NotImplementedError:
        value = _sampled(verifier, shape, target, draft)
        assert value > LEVEL, f"texts do not follow the target's distribution: p = {value:.2g}"
        return
    off = distance(law, target_law(target, 2))
    assert off < 1e-9, (
        f"the text's distribution is {off:.6g} from the target's: label, order or rows are not true"
    )


def _check_statement(shape: Shape) -> None:
    """Compare what a shape says of its trees with trees over a large enough vocabulary."""
    flat, sharp = (
        random_law(np.random.default_rng(8), (WORDS, WORDS), scale).astype(np.float32)
        for scale in (1.0, 40.0)
    )
    levels, nodes = set(), set()
    for seed in range(20):
        asked: list[int] = []
        table = sharp if seed % 2 else flat  # a shape may stop where the drafter is unsure

        def expand(
            tree: DraftTree,
            first: int,
            asked: list[int] = asked,
            table: np.ndarray = table,
        ) -> np.ndarray:
            asked.append(first)
            return table[tree.tokens[first:]]

        tree = shape.grow(0, expand, Rng(seed))
        _check_draw(shape, tree)
        levels.add(len(asked))
        nodes.add(len(tree) - 1)
    assert max(levels) == shape.depth, (
        f"the drafter ran {max(levels)} levels, but depth says {shape.depth}"
    )
    assert max(nodes) == shape.nodes, f"{max(nodes)} nodes drafted, but nodes says {shape.nodes}"
    assert isinstance(shape.label, str), f"label must be a text, got {shape.label!r}"
    assert shape.label.strip(), "label must name the settings, got an empty text"


def _check_draw(shape: Shape, tree: DraftTree) -> None:
    assert tree.draw == shape.draw or len(tree) == 1, (
        f"a tree says that its siblings were {tree.draw}, but draw says {shape.draw}"
    )


def _check_rows(tree: DraftTree, draft: np.ndarray) -> None:
    inner = [node for node, children in enumerate(tree.children) if children]
    if tree.draw in ("chosen", "coupled") or not inner:
        return
    assert tree.probs is not None, (
        f"a tree with {tree.draw} draws must carry the rows it was drawn from"
    )
    assert max(inner) < len(tree.probs), f"inner node {max(inner)} has no row of probabilities"
    true = at_nodes(draft, tree)
    for node in inner:
        assert np.allclose(tree.probs[node], true[node]), (
            f"row {node} is not what expand gave for that node"
        )


def _exact_verifier(tree: DraftTree) -> Verifier:
    rules: list[Verifier] = [Rejection(), GreedyPlusOne(), Match()]
    return next(rule for rule in rules if tree.draw in rule.exact_for)


def _sampled(verifier: Verifier, shape: Shape, target: np.ndarray, draft: np.ndarray) -> float:
    counts: Counter[tuple[int, ...]] = Counter()
    rng, grow = Rng(1), drafting(shape, draft)
    for _ in range(TREES):
        tree = grow(rng)
        verdict = verifier(tree, at_nodes(target, tree), rng)
        tokens = [tree.token_list[node] for node in verdict.path] + [verdict.next_token]
        while len(tokens) < 2:
            tokens.append(rng.draw(target[tokens[-1]]))
        counts[tokens[0], tokens[1]] += 1
    return chi_square(counts, target_law(target, 2))
