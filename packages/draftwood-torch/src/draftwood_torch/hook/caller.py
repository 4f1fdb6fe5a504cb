"""Recover arguments of Transformers' ``generate`` that it does not hand on to custom loops.

Transformers 5 keeps ``streamer`` and ``assistant_model`` to itself and drops ``tokenizer``. They
are read from the frames of the running call, and only if these are Transformers' own functions.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from transformers.generation import GenerationMixin


def arguments_of_generate() -> Mapping[str, Any]:
    """Arguments of the ``generate`` that called us; empty if none did."""
    return _locals_of(GenerationMixin.generate)  # pyright: ignore[reportAttributeAccessIssue]


def give_back_the_tokenizer() -> None:
    """Put ``tokenizer`` back among the arguments of ``generate``.

    From them it is about to pick those of the custom loop. To be called while ``generate`` reads
    the loop's signature: it has taken the tokenizer out by then, and without it ``stop_strings``
    and ``token_healing`` fail.
    """
    found = _locals_of(GenerationMixin._extract_generation_mode_kwargs)
    tokenizer = found.get("generation_mode_kwargs", {}).get("tokenizer")
    if tokenizer is not None:
        found["kwargs"].setdefault("tokenizer", tokenizer)


def _locals_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_locals
        frame = frame.f_back
    return {}
