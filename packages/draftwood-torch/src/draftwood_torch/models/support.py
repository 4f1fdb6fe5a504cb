"""Tests of models of Transformers: can they run trees, and how far."""

import inspect
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import transformers

from draftwood.models.configuration import FULL, SLIDING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


RECURRENT = "linear_attention"
BESIDE_RECURRENCES = {RECURRENT, "conv", "hybrid", "mlp", "moe"}
"""Kinds of layers that models with known recurrences may have, besides attention."""


def require_tree_support(hf_model: object, holds_states: bool = False) -> None:
    """Raise ValueError unless this model can run trees and drop their nodes.

    The error says which architecture and why.

    Args:
        holds_states: whether who asks can roll running states back.
    """
    from draftwood_torch.recurrences.known import recurrent_layers

    is_model = isinstance(hf_model, transformers.PreTrainedModel)
    reason = _why_not(hf_model) if is_model else _why_no_model(hf_model)
    if is_model and reason is None and not holds_states and recurrent_layers(hf_model):
        reason = (
            "keeps running states, which custom_generate cannot take back; load it with"
            " draftwood.load, and call its generate"
        )
    if reason is not None:
        raise ValueError(f"{type(hf_model).__name__} {reason}")


def _why_no_model(given: object) -> str:
    """Say why something else than a model of Transformers cannot be used."""
    if hasattr(given, "merge_and_unload") or hasattr(given, "get_base_model"):
        return (
            "wraps a model with adapters or learned prompts; merge adapters with "
            "model.merge_and_unload() and give what comes back; learned prompts are not supported"
        )
    return "is no model of Transformers; give a PreTrainedModel, or a name"


def _why_not(hf_model: "PreTrainedModel") -> str | None:
    """Say why this model cannot run trees; None if it can."""
    from draftwood_torch.recurrences.known import recurrent_layers

    config = hf_model.config.get_text_config()
    if holds_no_weights(hf_model):
        return "has weights that are not in memory; load it without offloading"
    takes = inspect.signature(hf_model.forward).parameters
    kinds = set(getattr(config, "layer_types", None) or [FULL])
    recurrent = recurrent_layers(hf_model)
    if hf_model.config.is_encoder_decoder or config.is_encoder_decoder:
        return "is an encoder-decoder; draftwood decodes causal language models"
    is_told = getattr(config, "use_bidirectional_attention", None) is True
    if is_told or sees_later(hf_model):
        return (
            "sees what comes after a token; use a causal language model, or in Transformers call"
            " generate without custom_generate"
        )
    if reason := _why_not_states(hf_model, kinds - {FULL, SLIDING}, bool(recurrent)):
        return reason
    if (
        ("position_ids" not in takes and kinds != {RECURRENT})
        or getattr(config, "alibi", False)
        or _counts_positions(hf_model)
    ):
        return (
            "does not take position_ids as they are, so the branches of a tree cannot share"
            " positions; use a model with rotary or learned positions"
        )
    if "cache" in takes and not recurrent and _names_caches_otherwise():
        return "names its cache as Transformers 5.24 does; install 'transformers<5.24'"
    if "past_key_values" not in takes and not recurrent:
        return "has no KV cache; use a model that has one"
    if "encoder_hidden_states" in takes and not getattr(config, "is_decoder", True):
        return "is an encoder, which sees what comes after a token; use a causal language model"
    if _has_own_window(hf_model):
        return (
            "makes its own causal mask with a window by places in the cache, where branches of a"
            " tree push its nodes away from what they should see; use another model"
        )
    if (config._attn_implementation or "eager") not in ("eager", "sdpa"):
        return (
            f"uses the attention {config._attn_implementation!r}, which takes no tree mask; load it"
            " with attn_implementation='sdpa'"
        )
    return None


def holds_no_weights(hf_model: "PreTrainedModel") -> bool:
    """True if some weights are not in memory, as where Accelerate offloads them between passes."""
    return any(parameter.is_meta for parameter in hf_model.parameters())


def _names_caches_otherwise() -> bool:
    """True if models call their cache ``cache`` in the installed release of Transformers."""
    major, minor = transformers.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (5, 24)


def sees_later(hf_model: "PreTrainedModel") -> bool:
    """True if Transformers masks nothing that comes after a token, whatever the model's class."""
    configs = (hf_model.config, hf_model.config.get_text_config())
    return not all(getattr(each, "is_causal", True) for each in configs)


def _why_not_states(
    hf_model: "PreTrainedModel", strange: set[str], has_recurrences: bool
) -> str | None:
    """Say why a tree cannot share the running states of this model; None if it can.

    Args:
        strange: kinds of layers that are not attention.
        has_recurrences: whether some are known.
    """
    if not (strange or has_recurrences or getattr(hf_model, "_is_stateful", False)):
        return None
    from draftwood_torch.recurrences.known import RECURRENCES, unknown_recurrences

    unknown = unknown_recurrences(hf_model)
    if has_recurrences and not unknown and strange <= BESIDE_RECURRENCES:
        return None
    named = ", ".join(unknown or sorted(strange)) or "state-space"
    return (
        f"has layers ({named}) that keep a running state or choose what they see themselves in a"
        " way that is not known here, so they cannot drop the rejected nodes of a draft tree; use a"
        f" model whose layers are attention or of the kinds {', '.join(RECURRENCES)}"
    )


def attention_windows(hf_model: "PreTrainedModel") -> dict[str, int | None]:
    """The kinds of attention that the layers have, each with the length of its window.

    None sees everything.

    A configuration may name a window that its class ignores: one without code that makes such masks
    sees everything, and in one whose code asks for no kinds of layers all have the window.
    """
    config = hf_model.config.get_text_config()
    makers = _makers_of_windows(hf_model)
    if not makers:
        return {FULL: None}
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if kinds is None or not any(map(_asks_for_kinds, makers)):
        return {SLIDING if window else FULL: window}
    return {kind: window if kind == SLIDING else None for kind in kinds}


def layer_windows(hf_model: "PreTrainedModel") -> list[int | None]:
    """The length of each layer's window; None sees everything."""
    windows, config = attention_windows(hf_model), hf_model.config.get_text_config()
    if len(windows) == 1:
        return list(windows.values()) * config.num_hidden_layers
    return [windows[kind] for kind in config.layer_types]


def _has_own_window(hf_model: "PreTrainedModel") -> bool:
    """True if one of the masks that the model holds itself hides the first place from the last."""
    return any(
        not bool(mask[..., -1, 0].all())
        for mask in hf_model.buffers()
        if mask.dtype == torch.bool and mask.ndim > 1 and mask.shape[-1] == mask.shape[-2] > 1
    )


def _makers_of_windows(hf_model: "PreTrainedModel") -> list[ModuleType]:
    """The files that the model's classes are written in and that build masks with a window."""
    classes = {kind for module in hf_model.modules() for kind in type(module).__mro__}
    files = [sys.modules.get(name) for name in {kind.__module__ for kind in classes}]
    return [each for each in files if each and hasattr(each, "create_sliding_window_causal_mask")]


@cache
def _asks_for_kinds(file: ModuleType) -> bool:
    """True if a file's code asks for the kinds of layers, or cannot be read."""
    try:
        return "layer_types" in inspect.getsource(file)
    except OSError:
        return True


def _counts_positions(hf_model: "PreTrainedModel") -> bool:
    """True if positions begin after the padding token's number, as RoBERTa and its kin have it, or
    if layers count rows themselves: Llama 4 scales queries without rotary positions so.
    """
    return any(
        hasattr(module, "create_position_ids_from_input_ids")
        or (getattr(module, "attn_temperature_tuning", False) and not vars(module)["use_rope"])
        for module in hf_model.modules()
    )


def end_tokens(hf_model: "PreTrainedModel") -> frozenset[int]:
    """Tokens with which the model ends its text."""
    ends = hf_model.generation_config.eos_token_id if hf_model.generation_config else None
    return frozenset([ends] if isinstance(ends, int) else ends or ())
