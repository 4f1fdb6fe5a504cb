"""Read EAGLE-3 heads of both layouts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.kinds import config_of
from draftwood.heads.scaled_rows import scaled_rows
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.storage.safetensors import read_header
from draftwood_torch.heads.networks import filled
from draftwood_torch.tensors import as_tensor
from draftwood_train.speculators.layout import EMBEDDING, HEAD, KNOWN, OFFSETS, settings_of

LAYER, READS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"

SAME = 0.02
"""Largest relative difference of weights that are the same but for how they are stored."""


def read(folder: Path, target: Model, name: str) -> TrainedHead:
    """Read an EAGLE-3 head of either layout, for a target.

    An output head that gives logits as the target's does is dropped, another one is kept.

    Args:
        target: the model that it was trained for, which these layouts do not tell from others.
        name: of the target.

    Raises:
        ValueError: in one line, for a folder that is none or not whole, for parts that an EAGLE
            head of draftwood does not have, and for another target.
    """
    require_ability(target, "embeddings_and_head", "a head of the speculators layout")
    says, weights = settings_of(folder), _weights(folder)
    weights = {each.replace("midlayer.", "layers.0."): weight for each, weight in weights.items()}
    tokens = _tokens(folder, weights, target.vocab_size)
    _require_embedding(folder, weights.pop(EMBEDDING, None), target)
    if HEAD not in weights:
        raise ValueError(f"{folder} has no {HEAD}, so it is no whole head; copy it again")
    if len(weights[HEAD]) != len(tokens):
        raise ValueError(
            f"{folder} drafts {len(tokens)} tokens, but {HEAD} has {len(weights[HEAD])} rows; copy"
            " the whole folder again"
        )
    # nothing is added to the logits of a head in these layouts
    adds_bias = target.embeddings_and_head.weights().head_bias is not None
    if not adds_bias and _same(weights[HEAD], as_tensor(scaled_rows(target, tokens.numpy()))):
        weights.pop(HEAD)
    config = _config(folder, says, weights, target.layers)
    if config.sizes.hidden != target.hidden_size:
        raise ValueError(
            f"{folder} was trained for hidden states of {config.sizes.hidden} entries, {name} has"
            f" {target.hidden_size}; name its own target"
        )
    wanted = config.shapes()
    found = {each: tuple(weight.shape) for each, weight in weights.items()}
    other = sorted(set(wanted.items()) ^ set(found.items()))
    if other:
        raise ValueError(
            f"{folder} is no EAGLE head that draftwood knows: {other[0][0]} is"
            f" {found.get(other[0][0], 'missing')}, not {wanted.get(other[0][0], 'expected')}"
        )
    arrays = {each: weight.numpy() for each, weight in weights.items()}
    return TrainedHead.of(filled(config, arrays), tokens, target, name)


def _config(
    folder: Path, says: Mapping[str, Any], weights: Mapping[str, Tensor], layers: int
) -> Any:
    """Settings of an EAGLE head from what a config.json says."""
    path = folder / "config.json"
    try:
        layer = says if LAYER not in says else _part(says, LAYER)
        _require_known(folder, says, layer)
        config = config_of("eagle", _values(says, layer, weights, layers))
        if config.layers > len(weights):  # which would take long to make
            raise ValueError(f"{config.layers} layers, and the weights are {len(weights)} tensors")
    except KeyError as error:
        raise ValueError(f"{path} does not say {error}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path} cannot be used: {' '.join(str(error).split())}") from None
    if not all(0 <= each < layers for each in config.reads):
        raise ValueError(  # the state behind the last layer is normed here, and there it is not
            f"{path} cannot be used: the head reads the inputs of layers {list(config.reads)} of a"
            f" target of {layers}, counted from 0; name its own target, or import a head that reads"
            " earlier layers"
        )
    return config


def _part(says: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Settings within settings; none where they are left out."""
    part = says.get(name) or {}
    if not isinstance(part, dict):
        raise ValueError(f"{name} holds no settings by name")
    return part


def _rope(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {**_part(layer, "rope_scaling"), **_part(layer, "rope_parameters")}


def _require_known(folder: Path, says: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Raise ValueError for parts that an EAGLE head of draftwood does not have."""
    rope = _rope(layer)
    lacking = {
        "a norm over all states together": says.get("norm_before_fc"),
        "another activation": layer.get("hidden_act", "silu") != "silu",
        "scaled rotary embeddings": (rope.get("rope_type") or rope.get("type") or "default")
        != "default",
        "partial rotary embeddings": ({**layer, **rope}.get("partial_rotary_factor") or 1) != 1,
        "rotary embeddings of several positions": bool(rope.get("mrope_section")),
    }
    for what, there in lacking.items():
        if there:
            raise ValueError(f"{folder} has {what}, which EAGLE heads of draftwood do not have")


def _values(
    says: Mapping[str, Any], layer: Mapping[str, Any], weights: Mapping[str, Tensor], layers: int
) -> dict[str, Any]:
    """Values of ``EagleConfig``, by name."""
    reads = says.get(READS)
    outputs = _part(says, "eagle_config").get(READS)
    if reads is None:  # SpecForge counts outputs of layers
        reads = [2, layers // 2, layers - 3] if outputs is None else [i + 1 for i in outputs]
    windows = "sliding_attention" in (layer.get("layer_types") or ())
    heads = layer["num_attention_heads"]
    sizes = {
        "hidden": layer["hidden_size"],
        "intermediate_size": layer["intermediate_size"],
        "heads": heads,
        "num_kv_heads": layer.get("num_key_value_heads", heads),
        "head_dim": layer.get("head_dim") or layer["hidden_size"] // heads,
        "rope_theta": layer.get("rope_theta") or _rope(layer).get("rope_theta", 10000.0),
        "epsilon": layer.get("rms_norm_eps", 1e-6),
    }
    return {
        "sizes": sizes,
        "layers": layer.get("num_hidden_layers", 1) if LAYER in says else 1,
        "reads": reads,
        "norms_features": bool(says.get("fc_norm")),
        "feeds_normed": bool(says.get("norm_output")),
        "norm_before_residual": bool(says.get("norm_before_residual")),
        "window": layer.get("sliding_window") if windows else None,
        "own_head": len(weights[HEAD]) if HEAD in weights else 0,
    }


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if path.is_file():
        read_header(path)
        weights = load_file(path)
    elif pickled.is_file():
        weights = _unpickled(pickled)
    else:
        raise ValueError(f"{folder} has no model.safetensors; copy the whole folder again")
    for name, weight in weights.items():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise ValueError(f"{folder} has weights that are no numbers, in {name}")
    return {n: w.float() if w.is_floating_point() else w for n, w in weights.items()}


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a file of PyTorch; code in it is not run."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, by where the file is damaged
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); copy it again") from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise ValueError(f"{path} holds no tensors by name; copy it again")
    return found


def _tokens(folder: Path, weights: dict[str, Tensor], vocab: int) -> Int[Tensor, " draft_vocab"]:
    """Draft vocabulary; removes both lists that translate it from the weights."""
    offsets, _ = weights.pop(OFFSETS, None), weights.pop(KNOWN, None)
    if offsets is None:
        return torch.arange(vocab)
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"{folder} has no list of offsets in {OFFSETS}; copy it again")
    tokens = offsets.long() + torch.arange(len(offsets))
    if not bool((tokens[1:] > tokens[:-1]).all()) or tokens[0] < 0 or tokens[-1] >= vocab:
        raise ValueError(
            f"{folder} drafts tokens that are not ascending ids below {vocab}, the target's"
            " vocabulary; name its own target"
        )
    return tokens


def _require_embedding(
    folder: Path, embedding: Float[Tensor, "vocab dim"] | None, target: Model
) -> None:
    if embedding is not None and not _same(
        embedding, as_tensor(target.embeddings_and_head.weights().embedding)
    ):
        raise ValueError(f"{folder} has an embedding that is not the target's; name its own target")


def _same(weights: Tensor, others: Tensor) -> bool:
    """True if these are the same weights but for rounding."""
    if weights.shape != others.shape:
        return False
    others = others.float().cpu()
    return bool((weights - others).norm() <= SAME * others.norm())
