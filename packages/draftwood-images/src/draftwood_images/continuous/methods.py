"""Methods of drawing continuous tokens, by name."""

from draftwood.methods.listings import CommandMethod
from draftwood_images.continuous.aligned import Aligned
from draftwood_images.continuous.cspd import Cspd
from draftwood_images.continuous.cspd_released import CspdReleased
from draftwood_images.continuous.reflected import Reflected
from draftwood_images.continuous.rule import ContinuousRule

METHODS: dict[str, ContinuousRule] = {
    each.name: each for each in (Reflected(), Aligned(), Cspd(), CspdReleased())
}

LISTED = [
    CommandMethod(
        name,
        f"python -m draftwood_images.continuous FOLDER --method {name}",
        each.summary,
        each.source,
        each.promise,
    )
    for name, each in METHODS.items()
]
"""The same, as ``draftwood methods`` lists them."""


def method_named(name: str) -> ContinuousRule:
    """A method by name; ValueError names those that there are."""
    if name not in METHODS:
        known = ", ".join(METHODS)
        raise ValueError(f"there is no method {name!r} for continuous tokens; there are: {known}")
    return METHODS[name]
