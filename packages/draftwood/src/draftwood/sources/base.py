"""Common parts of the sources of a merged tree."""

from draftwood.models.model import Model
from draftwood.sources.source import Evidence


def require_width(name: str, width: int, target: Model) -> None:
    """Raise ValueError unless a source reads hidden states as wide as the target's."""
    if target.hidden_size and width != target.hidden_size:
        raise ValueError(
            f"{name} reads hidden states of {width} numbers, and the model's have"
            f" {target.hidden_size}; make it for this model"
        )


def kinds_of(source: str, longest: int) -> list[Evidence]:
    """Make one kind of evidence for each number of tokens that agree, from 0 on."""
    return [Evidence(source, length) for length in range(longest + 1)]


class AskedNode:
    """A text that ends in a draft token, as sources know it that compute a row for each question.

    Attributes:
        row: of this node, once it was asked about; -1 before.
    """

    __slots__ = ("depth", "parent", "row", "token")

    def __init__(self, parent: "AskedNode | None", token: int) -> None:
        self.parent, self.token = parent, token
        self.depth = 0 if parent is None else parent.depth + 1
        self.row = -1
