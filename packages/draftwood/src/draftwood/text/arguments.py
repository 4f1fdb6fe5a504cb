"""Refusals of options before PyTorch and Transformers are imported."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from draftwood.sampling_params import OPTIONS, SamplingParams

if TYPE_CHECKING:
    pass

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_METHOD = "auto"


def require_decoding(given: Mapping[str, Any]) -> None:
    """Refuse options of ``LanguageModel.stream`` that no model takes; others are passed over.

    Raises:
        TypeError: for a value of another type.
        ValueError: for a value out of range, and a schema that is none.
    """
    SamplingParams(**{name: given[name] for name in OPTIONS if name in given})
