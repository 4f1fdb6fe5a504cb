"""The loop: draft, one forward pass of the target over the drafts, keep what it agrees with."""

from draftwood.engine.batch import generate, generate_batch
from draftwood.engine.decoding import Decoding
from draftwood.engine.method import Method
from draftwood.engine.options import Bound, FinishReason, Options

__all__ = ["Bound", "Decoding", "FinishReason", "Method", "Options", "generate", "generate_batch"]
