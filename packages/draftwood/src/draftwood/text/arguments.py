"""What cannot be written, refused before PyTorch and Transformers are imported."""

from collections.abc import Mapping
from typing import Any

from draftwood.validation import (
    require_one_grammar,
    require_sampling,
    require_small,
    schema_text,
    stop_strings,
)

SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def require_decoding(given: Mapping[str, Any]) -> None:
    """Refuse options of ``LanguageModel.stream`` that no model takes; others are passed over.

    Raises:
        TypeError: for a value of another type.
        ValueError: for a value out of range, and a schema that is none.
    """
    require_sampling(**{name: given[name] for name in SAMPLING if name in given})
    stop_strings(given.get("stop"))
    schema, grammar = given.get("json_schema"), given.get("grammar")
    require_one_grammar(schema, grammar)
    if schema is not None:
        schema_text(schema)
    if isinstance(grammar, str):
        require_small("the Lark grammar", grammar)
