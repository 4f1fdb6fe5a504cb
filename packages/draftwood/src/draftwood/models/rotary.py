"""Tables of rotary frequencies, from the parameters that a configuration has.

Frequencies have the bits of those that PyTorch computes on a CPU with AVX-512: an array is raised
to powers in runs of 32 by Sleef's ``powf``, and the rest by the C library. One last bit of one
frequency changes texts.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from draftwood.arrays import Float32, Float64
from draftwood.models.decoder import Rotary

Array = Float32[np.ndarray, " pairs"]
RUN = 32
"""Entries of a run that Sleef raises to powers at once."""
OF_ALL = frozenset(
    {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor"),
        "original_max_position_embeddings",
    }
)
_OF_YARN = (
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    *("llama_4_scaling_beta", "max_position_embeddings"),  # of Ministral 3, no part of the table
)
OF_KIND: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "proportional": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset({"factor", *_OF_YARN}),
    "longrope": frozenset({"factor", "attention_factor", "short_factor", "long_factor"}),
}
"""Parameters that each kind of scaling may have besides ``OF_ALL``."""
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}


def why_unknown(parameters: Mapping[str, Any]) -> str | None:
    """Say why no table can be computed from these parameters; None if one can."""
    kind = parameters["rope_type"]
    if kind not in OF_KIND:
        return f"its rotary positions are scaled as {kind!r}, not as one of {', '.join(OF_KIND)}"
    strange = sorted(parameters.keys() - OF_ALL - OF_KIND[kind])
    if strange:
        return f"its parameters of rotary positions have {', '.join(strange)}, unknown to {kind}"
    missing = [name for name in NEEDED.get(kind, ()) if parameters.get(name) is None]
    if kind == "longrope" and not all(
        isinstance(parameters.get(name), list) for name in NEEDED[kind]
    ):
        return "its factors for rotary positions are no lists"
    base = parameters.get("rope_theta")
    if base is None:
        missing.append("rope_theta")
    if missing:
        return f"its parameters of rotary positions lack {', '.join(missing)}"
    return None if is_number(base) and base > 0 else f"its rope_theta is {base!r}"


def is_number(value: object) -> TypeGuard[int | float]:
    """True for a number that is finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def rotary_of(parameters: Mapping[str, Any], head_dim: int, longest: int) -> Rotary:
    """Compute the table of texts no longer than those that the model was first trained with.

    Args:
        parameters: of a kind in ``OF_KIND``, as Transformers calls them.
        longest: positions that the model has.
    """
    part = parameters.get("partial_rotary_factor", 1.0)
    dim = head_dim if parameters["rope_type"] == "proportional" else int(head_dim * part)
    frequencies, scale = _BY_KIND[parameters["rope_type"]](parameters, dim, longest)
    return Rotary(frequencies, float(scale))


def _steps(dim: int) -> Array:
    return np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)


def _plain(base: float, dim: int) -> Array:
    return np.float32(1) / power(base, _steps(dim))


def _default(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    return _plain(parameters["rope_theta"], dim), 1.0


def _linear(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    return _plain(parameters["rope_theta"], dim) / np.float32(parameters["factor"]), 1.0


def _dynamic(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    """Stretch the base with the length (NTK); up to the length of training not at all."""
    factor = parameters["factor"]
    stretch = (factor * longest / longest) - (factor - 1)
    return _plain(parameters["rope_theta"] * stretch ** (dim / (dim - 2)), dim), 1.0


def _proportional(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    """Turn the pairs of the highest frequencies alone (Gemma 4)."""
    turned = int(parameters.get("partial_rotary_factor", 1.0) * dim // 2)
    waves = power(parameters["rope_theta"], _steps(dim)[:turned])
    found = np.pad(np.float32(1) / waves, (0, dim // 2 - turned))
    return found / np.float32(parameters.get("factor", 1.0)), 1.0


def _longrope(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    """Divide each frequency by a factor of its own (Ding et al. 2024, arXiv:2402.13753)."""
    before = parameters["original_max_position_embeddings"]
    factor, scale = parameters.get("factor"), parameters.get("attention_factor")
    factor = longest / before if factor is None else factor
    if scale is None:
        scale = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(before))
    short = np.array(parameters["short_factor"], np.float32)
    return np.float32(1) / (short * power(parameters["rope_theta"], _steps(dim))), scale


def _llama3(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    """Divide long waves by the factor, leave short ones, and go between the two (Llama 3.1)."""
    factor, before = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    usual, one = _plain(parameters["rope_theta"], dim), np.float32(1)
    length = (one / usual) * np.float32(2 * math.pi)
    found = np.where(length > np.float32(before / low), usual / np.float32(factor), usual)
    smooth = ((one / length) * np.float32(before) - np.float32(low)) / np.float32(high - low)
    between = (one - smooth) * found / np.float32(factor) + smooth * found
    is_between = (length >= np.float32(before / high)) & (length <= np.float32(before / low))
    return np.where(is_between, between, found), 1.0


def _yarn(parameters: Mapping[str, Any], dim: int, longest: int) -> tuple[Array, float]:
    """Divide low frequencies, by a ramp over the dimensions (arXiv:2309.00071)."""
    base, factor = parameters["rope_theta"], parameters["factor"]
    before, one = parameters["original_max_position_embeddings"], np.float32(1)
    fast, slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    first, last = (
        (dim * math.log(before / (turns * 2 * math.pi))) / (2 * math.log(base))
        for turns in (fast, slow)
    )
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    last += 0.001 if first == last else 0
    places = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((places - np.float32(first)) / np.float32(last - first), 0, 1)
    waves, outside = power(base, _steps(dim)), one - ramp
    inner = one / (np.float32(factor) * waves)
    return inner * (one - outside) + (one / waves) * outside, _magnitude(parameters)


def _magnitude(parameters: Mapping[str, Any]) -> float:
    """YaRN's factor of rotated queries and keys."""

    def of(multiple: float) -> float:
        factor = parameters["factor"]
        return 1.0 if factor <= 1 else 0.1 * multiple * math.log(factor) + 1.0

    told = parameters.get("attention_factor")
    if told is not None:
        return told
    multiple, of_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return of(multiple) / of(of_all) if multiple and of_all else of(1)


_BY_KIND: dict[str, Callable[[Mapping[str, Any], int, int], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def power(base: float, exponents: Array) -> Array:
    """Raise a number from 1 on to powers, with the bits that PyTorch gives; see above."""
    whole = len(exponents) // RUN * RUN
    rest = [float(np.float32(base)) ** float(each) for each in exponents[whole:]]
    return np.concatenate([_sleef(base, exponents[:whole]), np.array(rest, np.float32)])


# Sleef's coefficients of the logarithm, of the exponential function, and its parts of ln 2
_LOG = (0.240320354700088500976562, 0.285112679004669189453125, 0.400007992982864379882812)
_LOG_LAST = (0.66666662693023681640625, 3.69183861259614332084311e-09)
_EXP = (
    *(0.00136324646882712841033936, 0.00836596917361021041870117, 0.0416710823774337768554688),
    *(0.166665524244308471679688, 0.499999850988388061523438),
)
_LN2 = (0.69314718246459960938, -1.904654323148236017e-09)
_LN2_UPPER, _LN2_LOWER = np.float32(0.693145751953125), np.float32(1.428606765330187045e-06)
_PER_LN2 = np.float32(1.4426950408889634)


def _sleef(base: float, exponents: Array) -> Array:
    """Compute as ``powf`` of Sleef with fused products does, whose pairs of floats are doubles
    here.
    """
    number = np.float32(base)
    two = math.floor(math.log2(number * np.float32(1 / 0.75)))
    mantissa = float(number) / 2.0**two
    ratio = np.float64((mantissa - 1) / (mantissa + 1))
    square = ratio * ratio
    last = float(np.float32(_LOG_LAST[0])) + float(np.float32(_LOG_LAST[1]))
    ln2 = float(np.float32(_LN2[0])) + float(np.float32(_LN2[1]))
    series = float(_polynomial(_LOG, np.array(square, np.float32)))
    logarithm = ln2 * two + 2 * ratio + square * ratio * (square * series + last)
    return _exponential(logarithm * exponents.astype(np.float64))


def _exponential(powers: Float64[np.ndarray, " pairs"]) -> Array:
    doublings = np.rint(powers.astype(np.float32) * _PER_LN2)
    rest = powers - doublings * np.float64(_LN2_UPPER) - np.float64(doublings * _LN2_LOWER)
    series = _polynomial(_EXP, rest.astype(np.float32)).astype(np.float64)
    return (1 + (rest + rest * rest * series)).astype(np.float32) * np.exp2(doublings)


def _polynomial(coefficients: tuple[float, ...], at: Any) -> Any:
    """Horner's rule, rounded to float32 once for each coefficient."""
    found = np.full_like(at, coefficients[0])
    for each in coefficients[1:]:
        found = np.float32(np.float64(found) * np.float64(at) + np.float64(np.float32(each)))
    return found
