"""Models that do without some of their layers."""

from draftwood.models.model import Model
from draftwood.models.requirements import require_ability

LEAST_LAYERS = 4  # of a model that does without some of them


def require_depth(model: Model, who: str) -> None:
    """Raise ValueError unless a model has enough layers to do without some."""
    if model.layers < LEAST_LAYERS:
        raise ValueError(
            f"{who} needs a model of at least {LEAST_LAYERS} layers, this one has {model.layers}"
        )
    require_ability(model, "partial", who)
