"""Sizes of layers with running states that the loops over their heads can take, and of LFM2."""

from typing import Any


def delta_rule(config: Any) -> str | None:
    """Say which numbers the loops over heads cannot take."""
    key, value = config.linear_key_head_dim, config.linear_value_head_dim
    heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
    if key % 16 or value % 16:
        return f"heads of its running states have {key} and {value} dimensions, not multiples of 16"
    if heads % keys:
        return f"its {heads} heads of values do not share {keys} keys evenly"
    return None if config.linear_conv_kernel_dim <= 32 else "its convolutions reach back too far"


def state_space(config: Any) -> str | None:
    """Say which sizes of a state space model the loops over heads cannot take."""
    state, heads, groups = config.mamba_d_state, config.mamba_n_heads, config.mamba_n_groups
    width = int(config.mamba_expand * config.hidden_size)
    if width % heads or config.mamba_d_head not in ("auto", width // heads):
        return f"its {heads} heads of states do not have {width} entries together"
    if state % 16 or width // heads % 16:
        return f"its states are {state} x {width // heads}, not multiples of 16"
    if heads % groups or width // groups % 16:
        return f"its {heads} heads of states do not share {groups} groups evenly"
    if config.mamba_proj_bias:
        return "its projections around states have biases"
    return None if config.mamba_d_conv <= 32 else "its convolutions reach back too far"


def convolution(config: Any) -> str | None:
    if config.conv_bias:
        return "its convolutions have biases"
    if config.hidden_size % 16:
        return f"its states have {config.hidden_size} entries, not a multiple of 16"
    return None if config.conv_L_cache <= 32 else "its convolutions reach back too far"


def lfm2_inner_size(config: Any) -> int:
    """Entries within a network: two thirds of what the configuration says, rounded up, where it
    says so.
    """
    told = config.intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return told
    part, step = int(2 * told / 3), config.block_multiple_of
    if config.block_ffn_dim_multiplier is None:
        return part
    return -(-int(config.block_ffn_dim_multiplier * part) // step) * step
