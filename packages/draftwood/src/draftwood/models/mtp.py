"""Layers of a target for multi-token prediction (MTP), which come with its own weights."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from draftwood.native.head import SessionHead


class MtpHead(Protocol):
    """A target's layer for multi-token prediction, in C++ or in PyTorch.

    It reads the target's state after the final norm and the embedding of the next token, each
    normed, through one projection, a decoder layer of the target's kind and a norm of its own; the
    target's output head gives logits (DeepSeek-AI 2024, arXiv:2412.19437). Deeper tokens are
    drafted by the same layer, which reads what it said itself.

    Attributes:
        reads: the target's layers whose inputs it reads: the number after the last one.
        native: as the library runs it; None where PyTorch does.
    """

    @property
    def reads(self) -> tuple[int, ...]: ...

    @property
    def native(self) -> "SessionHead | None": ...

    def text(self) -> Any:
        """Begin a text in PyTorch: a ``HeadText`` of drafters/head_drafts.py."""
        ...
