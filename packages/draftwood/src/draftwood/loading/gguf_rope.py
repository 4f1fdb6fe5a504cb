"""Rotary positions of a GGUF file, as Transformers' ``rope_parameters``.

These are base, scaling, and tensors of factors.
"""

from collections.abc import Mapping
from math import log
from typing import Any

from draftwood.loading.gguf_metadata import FREQS, LONG, SHORT, Metadata, UnknownArchitectureError

DEFAULT_BASE = 10000.0
HIGHEST_BASE = 1e15
MULTIPLIED = ("mistral3",)
"""Architectures of which llama.cpp reads a multiplier of YaRN's magnitude."""


def rope_parameters(metadata: Metadata, context: int, rotated: int) -> dict[str, Any]:
    """The parameters that give the same frequencies as llama.cpp's.

    Args:
        metadata: of the file; what is understood is taken.
        context: most tokens.
        rotated: dimensions of a head that are rotated.

    Raises:
        UnknownArchitectureError: for a scaling that Transformers cannot express.
        ValueError: for one that is damaged.
    """
    base = {"rope_theta": rope_base(metadata, "rope.freq_base")}
    old_name = metadata.take("rope.scale_linear", 1.0)
    factor = float(metadata.take("rope.scaling.factor", old_name) or 1.0)
    if not 1 / HIGHEST_BASE < factor < HIGHEST_BASE:
        raise ValueError(f"it scales rotary positions by {factor}")
    kind = metadata.take("rope.scaling.type", "linear")
    attention = float(metadata.take("rope.scaling.attn_factor", 1.0))
    before = metadata.take("rope.scaling.original_context_length")
    if kind == "none":
        factor, kind = 1.0, "linear"
    if metadata.factors:
        if factor != 1.0:
            raise UnknownArchitectureError(
                f"it scales rotary positions both by {factor} and by tensors of factors"
            )
        return base | _by_factors(metadata.factors, context, before, attention, rotated)
    if kind == "yarn":
        return base | _yarn(metadata, factor, int(before or context), attention)
    if kind != "linear":
        raise UnknownArchitectureError(
            f"its rope.scaling.type is {kind!r}; readable are none, linear, yarn, and longrope with"
            " factors"
        )
    if attention != 1.0:
        raise UnknownArchitectureError(
            f"its rope.scaling.attn_factor is {attention} without a scaling that has one"
        )
    return base | (
        {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    )


def rope_base(metadata: Metadata, key: str) -> float:
    """The base of rotary frequencies. Raises ValueError for one of which there are none."""
    base = float(metadata.take(key, DEFAULT_BASE))
    if not 1.0 <= base <= HIGHEST_BASE:
        raise ValueError(f"the setting {metadata.architecture}.{key} is {base}")
    return base


def _by_factors(
    factors: Mapping[str, list[float]],
    context: int,
    before: int | None,
    attention: float,
    rotated: int,
) -> dict[str, Any]:
    """Every frequency divided by a factor of its own.

    It is LongRoPE, or Llama 3.1's scaling, which no length changes.
    """
    if FREQS in factors:
        short = long = factors[FREQS]
        before = context
    elif LONG in factors and SHORT in factors and before:
        short, long = factors[SHORT], factors[LONG]
    else:
        raise ValueError(f"of its factors for rotary positions it has only {', '.join(factors)}")
    if {len(short), len(long)} != {rotated // 2}:
        raise ValueError(f"it has {len(short)} factors for {rotated // 2} rotary frequencies")
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "factor": context / before,
        "attention_factor": attention,
        "original_max_position_embeddings": before,
    }


def _yarn(metadata: Metadata, factor: float, before: int, attention: float) -> dict[str, Any]:
    """YaRN's parameters.

    llama.cpp multiplies the usual magnitude with ``attn_factor``, its converter writes a whole one.
    """
    outside = metadata.take("rope.scaling.yarn_ext_factor", 1.0)
    multiple = metadata.take("rope.scaling.yarn_log_multiplier", 0.0)
    if outside != 1.0 or (multiple != 0.0 and metadata.architecture not in MULTIPLIED):
        raise UnknownArchitectureError(
            f"its YaRN has yarn_ext_factor {outside} and yarn_log_multiplier {multiple}; readable"
            " are 1 and 0"
        )
    growth = log(factor) if factor > 1.0 else 0.0
    usual = (0.1 * growth + 1.0) / (0.1 * float(multiple) * growth + 1.0)
    whole = metadata.take("rope.scaling.yarn_attn_factor")
    if whole is not None and attention != 1.0:
        raise UnknownArchitectureError(
            f"its rope.scaling.attn_factor {attention} and yarn_attn_factor {whole} contradict each"
            " other"
        )
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": before,
        "attention_factor": attention * usual if whole is None else float(whole),
        "beta_fast": float(metadata.take("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(metadata.take("rope.scaling.yarn_beta_slow", 1.0)),
    }
