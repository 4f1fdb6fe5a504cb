"""The context length of a model, by its configuration."""


def context_length(config: object) -> int | None:
    """Most tokens a sequence may have.

    Some rotary scalings change all frequencies once a text is longer than the model's first
    training texts. Keys in the cache would not fit any more, so such models stop there.
    """
    longest = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for scaling in (rope, *rope.values()):  # one for all layers, or one for each kind of attention
        if isinstance(scaling, dict) and scaling.get("rope_type") in ("dynamic", "longrope"):
            before = scaling.get("original_max_position_embeddings")
            longest = min(
                (length for length in (longest, before) if length is not None), default=None
            )
    return longest


def same_beyond_context(config: object) -> bool:
    """True if positions beyond the context length are computed as those before.

    They are if the rotary angles never change.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    scalings = [
        scaling
        for scaling in (rope, *rope.values())
        if isinstance(scaling, dict) and "rope_type" in scaling
    ]
    return bool(scalings) and all(
        scaling["rope_type"] not in ("dynamic", "longrope") for scaling in scalings
    )
