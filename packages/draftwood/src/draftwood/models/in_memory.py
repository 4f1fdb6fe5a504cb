"""Models that other packages hold in memory."""

from typing import Any, Protocol


class ModelInMemory(Protocol):
    """A causal language model of Transformers.

    Attributes:
        config: its configuration.
    """

    config: Any

    def get_output_embeddings(self) -> Any: ...
