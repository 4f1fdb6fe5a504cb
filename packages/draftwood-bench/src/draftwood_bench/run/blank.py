"""Records of measurements, before they are measured."""

from typing import Any

from draftwood_bench.records.files import Record


def blank(method: str, at: str = "default", model: str | None = None, **more: Any) -> Record:
    """A record with no stats yet, and with nothing that only an answer to a prompt has.

    Args:
        method: the measured method.
        at: where.
        model: on which weights.
        more: other fields of the record.
    """
    fields: dict[str, Any] = {
        "cell": " | ".join(part for part in (model, method, at) if part is not None),
        "shape": None,
        "verifier": None,
        "drafter": None,
        "lossless": True,
        "category": "all",
        "prompt": "none",
        "turn": 0,
        "round": 0,
        "seed": 0,
        "temperature": 0.0,
        "prompt_tokens": 0,
        "token_ids": None,
        "text": None,
        "stats": {},
        "seconds_end_to_end": None,
    }
    return Record(method=method, at=at, model=model, **{**fields, **more})
