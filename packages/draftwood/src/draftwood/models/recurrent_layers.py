"""Layers with a running state: what they keep of earlier rows, and the projections around it."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from draftwood.arrays import Int, as_array, below
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.configuration_class import TILED
from draftwood.models.decoder import Around, Projection, RunningState, StateSpace, tiled

Floats = Callable[[str], Any]
"""Gives a tensor by its name in float32; None where the shapes have none."""
Order = Int[np.ndarray, " chosen"] | None


def recurrence_of(
    config: ModelConfiguration,
    at: str,
    names: Collection[str],
    floats: Floats,
    projection: Callable[[str], Projection],
) -> tuple[RunningState, Around]:
    """Read a layer's recurrence.

    Args:
        at: what names of its tensors begin with.
        names: of all tensors.
        projection: gives a module by its name.
    """
    if f"{at}conv.weight" in names:
        return _convolution(config, at, floats, projection)
    if f"{at}D" in names:
        return _state_space(config, at, floats, projection)
    state = RunningState(
        key_heads=config.get("linear_num_key_heads"),
        value_heads=config.get("linear_num_value_heads"),
        key_dim=config.get("linear_key_head_dim"),
        value_dim=config.get("linear_value_head_dim"),
        taps=_flat(floats(f"{at}conv1d.weight")),
        decays=_negative_exponentials(floats(f"{at}A_log")),
        steps=floats(f"{at}dt_bias"),
        norm=floats(f"{at}norm.weight"),
        is_tiled=bool(getattr(config, TILED, False)),
    )
    around = _joined if f"{at}in_proj_qkvz.weight" in names else _apart
    return state, around(at, state, floats, projection)


def _flat(taps: Any) -> Any:
    return taps.reshape(len(taps), -1)


def _negative_exponentials(logarithms: Any) -> np.ndarray:
    with np.errstate(over="ignore"):  # a state that nothing is left of
        return -np.exp(as_array(logarithms))


def _convolution(
    config: ModelConfiguration, at: str, floats: Floats, projection: Callable[[str], Projection]
) -> tuple[RunningState, Around]:
    """A gated short convolution: one factor of what it reads, the gate, and the other."""
    hidden = config.get("hidden_size")
    width = next(size for size in (64, 32, 16) if hidden % size == 0)
    state = RunningState.convolution(hidden // width, width, _flat(floats(f"{at}conv.weight")))
    query, key, value = projection(f"{at}in_proj").split([hidden] * 3)
    return state, (query, key, value, projection(f"{at}out_proj"))


def _apart(
    at: str, state: RunningState, floats: Floats, projection: Callable[[str], Projection]
) -> Around:
    """Projections to what a recurrence is fed, by heads of keys, to the gate, to rates and steps,
    and the one behind it.
    """
    rate, step = (floats(f"{at}in_proj_{part}.weight") for part in "ba")
    return (
        projection(f"{at}in_proj_qkv").reordered(state.by_key_heads),
        projection(f"{at}in_proj_z"),
        Projection(below(rate, step), None),
        projection(f"{at}out_proj"),
    )


def _joined(
    at: str, state: RunningState, floats: Floats, projection: Callable[[str], Projection]
) -> Around:
    """The same where one tensor has all of a head of keys below each other (Qwen3-Next)."""
    keys, whole = state.key_heads, projection(f"{at}in_proj_qkvz")
    rows = np.arange(whole.weight.shape[0]).reshape(keys, -1)
    fed = len(state.taps) // keys
    rates = floats(f"{at}in_proj_ba.weight")
    order = np.arange(len(rates)).reshape(keys, 2, -1).swapaxes(0, 1).flatten()
    return (
        whole.reordered(rows[:, :fed].flatten()),
        whole.reordered(rows[:, fed:].flatten()),
        Projection(rates[order], None),
        projection(f"{at}out_proj"),
    )


def _state_space(
    config: ModelConfiguration, at: str, floats: Floats, projection: Callable[[str], Projection]
) -> tuple[RunningState, Around]:
    """A state space model, whose tensors have values before keys, and queries last (Mamba-2)."""
    heads, groups = config.get("mamba_n_heads"), config.get("mamba_n_groups")
    width = space_width(config)
    values, both = np.arange(width), width + np.arange(2 * groups * config.get("mamba_d_state"))
    keys, queries = both.reshape(2, -1)
    order, biases = np.concatenate([queries, keys, values]), floats(f"{at}conv1d.bias")
    low, high = config.get("time_step_limit") or (0.0, np.inf)
    state = RunningState(
        key_heads=groups,
        value_heads=heads,
        key_dim=config.get("mamba_d_state"),
        value_dim=width // heads,
        taps=_flat(floats(f"{at}conv1d.weight"))[order],
        decays=_negative_exponentials(floats(f"{at}A_log")),
        steps=floats(f"{at}dt_bias"),
        norm=floats(f"{at}norm.weight"),
        space=StateSpace(
            None if biases is None else biases[order],
            floats(f"{at}D"),
            (_number(low), _number(high)),
            groups,
        ),
    )
    gate, fed, steps = projection(f"{at}in_proj").split([width, len(order), heads])
    return state, (
        fed.reordered(order[state.by_key_heads]),
        gate,
        steps,
        projection(f"{at}out_proj"),
    )


def space_width(config: ModelConfiguration) -> int:
    """Entries of all values of a state space model."""
    return int(config.get("mamba_expand") * config.get("hidden_size"))


def _number(told: Any) -> float:
    """A number as Transformers writes it, which JSON may not have."""
    return float(told["__float__"] if isinstance(told, dict) else told)


def state_parts(module: str, config: ModelConfiguration) -> dict[str, Int[np.ndarray, " rows"]]:
    """The modules whose outputs Qwen3-Next has in one, below each other for each head of keys, and
    the rows of each; none for other modules.
    """
    at, _, name = module.rpartition(".")
    if name not in ("in_proj_qkvz", "in_proj_ba"):
        return {}
    keys, heads = config.get("linear_num_key_heads"), config.get("linear_num_value_heads")
    if name == "in_proj_ba":
        rate, step = np.arange(2 * heads).reshape(keys, 2, -1).swapaxes(0, 1)
        return {f"{at}.in_proj_b": rate.flatten(), f"{at}.in_proj_a": step.flatten()}
    key, values = config.get("linear_key_head_dim"), heads * config.get("linear_value_head_dim")
    rows = np.arange(2 * (keys * key + values)).reshape(keys, -1)
    *fed, gate = np.split(rows, [key, 2 * key, 2 * key + values // keys], axis=1)
    return {
        f"{at}.in_proj_qkv": np.concatenate([each.flatten() for each in fed]),
        f"{at}.in_proj_z": gate.flatten(),
    }


def orders(module: str, config: ModelConfiguration) -> tuple[Order, Order]:
    """The orders of a module's outputs and inputs where a configuration's tensors have heads of
    values that share a key far apart; None for those that stay.
    """
    name = module.rpartition(".")[2]
    is_tiled = getattr(config, TILED, False) and ".linear_attn." in f".{module}"
    if not is_tiled or name == "norm":
        return None, None
    keys, heads = config.get("linear_num_key_heads"), config.get("linear_num_value_heads")
    values = tiled(keys, heads, config.get("linear_value_head_dim"))
    if name in ("in_proj_qkv", "conv1d"):
        before = 2 * keys * config.get("linear_key_head_dim")
        return np.concatenate([np.arange(before), before + values]), None
    if name == "in_proj_z":
        return values, None
    return (None, values) if name == "out_proj" else (tiled(keys, heads, 1), None)
