"""Methods by name: found, checked and built."""

from difflib import get_close_matches

from draftwood.costs.budget import Budget, Seconds
from draftwood.drafters.resources import Resources, drafter_of
from draftwood.engine.method import Method
from draftwood.interfaces.model import Model
from draftwood.methods.recipes import RECIPES, Recipe
from draftwood.shapes import Shape
from draftwood.sources import BigramPrior
from draftwood.validation import require_like_size
from draftwood.verifiers import Verifier


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
    """Raise ValueError where a method lacks a draft model or is given a part that it would not
    use."""
    name = wanted.name
    if wanted.drafter == "draft-model" and not draft_model:
        raise ValueError(
            f"method {name!r} drafts with a second, smaller model of the same vocabulary; name one"
            " with --draft-model (draft_model= in Python), or choose lookup, recycling or"
            " layer-skip, which need none"
        )
    if wanted.drafter != "draft-model" and draft_model:
        raise ValueError(
            f"method {name!r} uses no draft model; leave it out or choose another method"
        )
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
        curve: seconds of a run by nodes, for methods that weigh it; None assumes a machine where
            guesses are dear.
        prior: the model's bigrams, for ``auto`` and ``recycling``, which do without where it is
            None.

    Raises:
        ValueError: for an unknown name, a missing draft model or one of another vocabulary, and a
            draft model or shape that would not be used.
    """
    wanted = recipe(name)
    require_parts(wanted, draft_model is not None, shape is not None)
    if draft_model is not None:
        require_like_size(target.vocab_size, draft_model.vocab_size)
    parts = Resources(
        target, draft_model, shape or wanted.shape, Budget.of(curve) if curve else Budget(), prior
    )
    return Method(drafter_of(wanted.drafter, parts), verifier or wanted.verifier, name)
