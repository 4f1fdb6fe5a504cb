"""Maps of early exits on disk: fitted once for each model, found again by every later load."""

from contextlib import suppress

from draftwood.heads.exits import MOST_TOKENS, Exits, exit_layers
from draftwood.models.model import Model
from draftwood.sources.stored_prior import StoredPrior
from draftwood.storage.atomic import write_file
from draftwood.storage.progress import progress
from draftwood.storage.weights import kept_for

STORED_SECONDS = 7.0  # of writing, for maps that later loads find again; fitting comes after it
PASSING_SECONDS = 1.0  # for some that are forgotten with the process


def stored_exits(prior: StoredPrior) -> Exits:
    """The exits of a model, next to whose prior they lie: read from disk, or fitted and stored.

    A file that is damaged, or of other weights, is written again; one that cannot be written is not
    stored.
    """
    if prior.folder is None:
        return _fitted(prior.model, prior.before, PASSING_SECONDS)
    layers = exit_layers(prior.model.layers)
    path, digest = kept_for("exits", prior.folder, prior.before, MOST_TOKENS, layers)
    if path.exists():
        with suppress(ValueError, OSError):
            return Exits.load(path, digest)
    exits = _fitted(prior.model, prior.before, STORED_SECONDS)
    with suppress(OSError):  # the next load fits them again
        write_file(path, lambda file: exits.save(file, digest))
    return exits


def _fitted(model: Model, before: tuple[int, ...], seconds: float) -> Exits:
    with progress(f"fitting the model's early exits on its own text, {seconds:.0f} s"):
        return Exits.of(model, before, seconds=seconds)
