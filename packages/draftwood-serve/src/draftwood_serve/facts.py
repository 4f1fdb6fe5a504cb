"""Facts of a model that are told of it, also once it has left the memory."""

from dataclasses import dataclass
from pathlib import Path

from draftwood.text import infill
from draftwood_serve.loaded import LoadedTarget


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model as it was last loaded.

    Attributes:
        context_length: most tokens of prompt and answer; None for no limit.
        weight_bytes: of its weights; 0 where it does not tell them.
        products: form of the weights; empty likewise.
        template: of chats, or several by name; None without one.
        fills_gaps: whether it has tokens for a text with a gap.
        thinks: whether its template knows of thoughts.
        hidden_size, layers: of the network.
        method: of requests that name none.
        writes_by_token: False for a model that a package knows to write in another way.
        folder: of its files.
    """

    context_length: int | None
    weight_bytes: int
    products: str
    template: object
    fills_gaps: bool
    thinks: bool
    hidden_size: int
    layers: int
    method: str
    writes_by_token: bool
    folder: Path | None

    @classmethod
    def of(cls, target: LoadedTarget) -> "ModelFacts":
        """Read them while the model is in memory."""
        lm = target.plain
        return cls(
            context_length=target.context_length,
            weight_bytes=getattr(lm.model, "weight_bytes", 0),
            products=str(getattr(lm.model, "products", "")),
            template=lm.tokenizer.chat_template,
            fills_gaps=infill.InfillTokens.of(lm.tokenizer) is not None,
            thinks=lm.thought(()) is not None,
            hidden_size=lm.model.hidden_size,
            layers=lm.model.layers,
            method=target.method,
            writes_by_token=target.writes_by_token,
            folder=lm.calibration.folder,
        )
