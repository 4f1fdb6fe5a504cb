"""Published methods as combinations of a drafter, a shape and a verifier; the only table of names."""

from dataclasses import dataclass
from difflib import get_close_matches

from draftwood.budget import Budget, Seconds
from draftwood.drafters import BigramPrior, Drafter
from draftwood.drafters.token_recycling import published_tree
from draftwood.models.base import Model
from draftwood.models.vocabulary import require_like_size
from draftwood.parts import DrafterName, Parts, drafter_of
from draftwood.shapes import BestFirst, Independent, Sequoia, Shape, StochasticBeam, Widths
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal, Typical, Verifier


@dataclass(frozen=True, eq=False)
class Method:
    """Where guesses come from and which are kept, ready to use.

    Attributes:
        drafter: with its shape inside, where it takes one.
        verifier: decides what is kept.
        name: for reports.
    """

    drafter: Drafter
    verifier: Verifier
    name: str = "custom"

    @property
    def lossless(self) -> bool:
        """Whether the verifier keeps the model's output law for any kind of draft at all."""
        return bool(self.verifier.exact_for)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How to build a published method.

    Attributes:
        name: as given to ``--method``.
        summary: one line.
        source: authors, year, arXiv id or address.
        drafter: what it drafts with; ``draft-model`` asks for a second model.
        shape: default tree, for drafters that take one.
        verifier: what decides.
        uses_curve: whether it weighs what runs of the model cost.
        uses_prior: whether it guesses with the model's bigram prior.
    """

    name: str
    summary: str
    source: str
    drafter: DrafterName
    shape: Shape | None
    verifier: Verifier
    uses_curve: bool = False
    uses_prior: bool = False

    @property
    def lossless(self) -> bool:
        return bool(self.verifier.exact_for)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "auto",
            "several sources that need no second model, in a tree as large as pays",
            "after Hu et al. 2024, arXiv:2411.10666 and RACER 2026, arXiv:2604.14885",
            "combined",
            None,
            Match(),
            uses_curve=True,
            uses_prior=True,
        ),
        Recipe("plain", "one token per run, no guesses", "the base line", "nothing", None, Match()),
        Recipe(
            "speculative",
            "a chain drawn from a draft model",
            "Leviathan et al. 2023, arXiv:2211.17192",
            "draft-model",
            Widths((1, 1, 1, 1)),
            Rejection(),
        ),
        Recipe(
            "block",
            "the same chain, tested as a whole",
            "Sun et al. 2024, arXiv:2403.10444",
            "draft-model",
            Widths((1, 1, 1, 1)),
            Block(),
        ),
        Recipe(
            "spectr",
            "independent chains, chosen by optimal transport",
            "Sun et al. 2023, arXiv:2310.15141",
            "draft-model",
            Independent(3, 4),
            KSeq(),
        ),
        Recipe(
            "specinfer",
            "a tree drawn independently, multi-step rejection",
            "Miao et al. 2024, arXiv:2305.09781",
            "draft-model",
            Widths((3, 1, 1, 1), "independent"),
            Rejection(),
        ),
        Recipe(
            "rsd-c",
            "a tree drawn without replacement, recursive rejection",
            "Jeon et al. 2024, arXiv:2402.14160",
            "draft-model",
            Widths((3, 2, 1, 1)),
            Rejection(),
        ),
        Recipe(
            "rsd-s",
            "a stochastic beam, recursive rejection",
            "Jeon et al. 2024, arXiv:2402.14160",
            "draft-model",
            StochasticBeam(4, 4),
            Rejection(),
        ),
        Recipe(
            "traversal",
            "a stochastic beam, tested from its leaves upwards",
            "Weng et al. 2025, arXiv:2505.12398",
            "draft-model",
            StochasticBeam(4, 4),
            Traversal(),
        ),
        Recipe(
            "greedy-plus-one",
            "the likeliest tokens and one drawn one",
            "Hu et al. 2025, arXiv:2502.18779",
            "draft-model",
            Widths((3, 2, 1, 1), "greedy-plus-one"),
            GreedyPlusOne(),
        ),
        Recipe(
            "sequoia",
            "the tree with the best expected yield",
            "Chen et al. 2024, arXiv:2402.12374",
            "draft-model",
            Sequoia(),
            Rejection(),
        ),
        Recipe(
            "eagle-2-tree",
            "the likeliest nodes of a draft model's tree",
            "Li et al. 2024, arXiv:2406.16858",
            "draft-model",
            BestFirst(4, 4, 16),
            Match(),
        ),
        Recipe(
            "typical",
            "the likeliest nodes, accepted where they look typical; changes what the model says",
            "Cai et al. 2024, arXiv:2401.10774",
            "draft-model",
            BestFirst(4, 4, 16),
            Typical(),
        ),
        Recipe(
            "lookup",
            "copies what followed the newest tokens before",
            "Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
            "prompt-lookup",
            None,
            Match(),
        ),
        Recipe(
            "recycling",
            "a tree of what the model thought likely after each token",
            "Luo et al. 2024, arXiv:2408.08696",
            "token-recycling",
            published_tree(),
            Match(),
        ),
        Recipe(
            "suffix",
            "copies what followed the longest match, in a tree as large as pays",
            "Oliaro et al. 2024, arXiv:2411.04975; Hu et al. 2024, arXiv:2411.10666",
            "suffix",
            None,
            Match(),
            uses_curve=True,
        ),
        Recipe(
            "stand",
            "a tree drawn from n-gram tables of the model's own probabilities",
            "Song et al. 2025, arXiv:2506.04708",
            "stand",
            None,
            Rejection(),
        ),
        Recipe(
            "aded",
            "the likeliest continuations in an adaptive tri-gram table",
            "Liu et al. 2024, arXiv:2407.12021",
            "aded",
            None,
            Match(),
        ),
        Recipe(
            "layer-skip",
            "the model without some of its layers drafts",
            "Zhang et al. 2024, arXiv:2309.08168",
            "layer-skip",
            Widths((1, 1, 1)),
            Rejection(),
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of this name.

    Raises:
        ValueError: for an unknown name, with the nearest ones.
    """
    if name in RECIPES:
        return RECIPES[name]
    near = get_close_matches(name, RECIPES, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(RECIPES)}"
    raise ValueError(f"there is no method {name!r}; {hint}")


def require_parts(wanted: Recipe, draft_model: bool, shape: bool = False) -> None:
    """Raise ValueError where a method lacks a draft model or is given a part that it would not use."""
    name = wanted.name
    if wanted.drafter == "draft-model" and not draft_model:
        raise ValueError(
            f"method {name!r} drafts with a second, smaller model of the same vocabulary; name one with --draft-model "
            "(draft_model= in Python), or choose lookup, recycling or layer-skip, which need none"
        )
    if wanted.drafter != "draft-model" and draft_model:
        raise ValueError(f"method {name!r} uses no draft model; leave it out or choose another method")
    if wanted.shape is None and shape:
        raise ValueError(f"method {name!r} takes no shape")


def build(
    name: str,
    target: Model,
    draft_model: Model | None = None,
    shape: Shape | None = None,
    verifier: Verifier | None = None,
    curve: Seconds | None = None,
    prior: BigramPrior | None = None,
) -> Method:
    """A method by name, for a target.

    Args:
        name: one of ``RECIPES``.
        draft_model: for the methods that draft with one.
        shape: a tree other than the recipe's, for drafters that take one.
        verifier: a verifier other than the recipe's.
        curve: seconds of a run by nodes, for methods that weigh it; None assumes a machine where guesses are dear.
        prior: the model's bigrams, for ``auto`` and ``recycling``, which do without where it is None.

    Raises:
        ValueError: for an unknown name, a missing draft model or one of another vocabulary, and a draft model or shape
            that would not be used.
    """
    wanted = recipe(name)
    require_parts(wanted, draft_model is not None, shape is not None)
    if draft_model is not None:
        require_like_size(target.vocab_size, draft_model.vocab_size)
    parts = Parts(target, draft_model, shape or wanted.shape, Budget.of(curve) if curve else Budget(), prior)
    return Method(drafter_of(wanted.drafter, parts), verifier or wanted.verifier, name)
