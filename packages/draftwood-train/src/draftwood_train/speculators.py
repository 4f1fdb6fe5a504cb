"""EAGLE-3 heads in the layout of the ``speculators`` package, which vLLM reads, and of SafeAILab.

Both hold a Llama decoder layer, the parts of an EAGLE head, an output head of the draft vocabulary,
and two lists that translate its ids. The first layer is ``layers.0`` in the former and ``midlayer``
in the latter.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.kinds import config_type, require_parts
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.native.formats import HeadSizes
from draftwood.storage.atomic import replace_folder
from draftwood.storage.safetensors import read_header
from draftwood_torch.heads.networks import filled
from draftwood_torch.tensors import as_tensor

VERSION = "0.9.0"
"""Version of the speculators package whose layout is written."""

SAME = 0.02
"""Largest relative difference of weights that are the same but for how they are stored."""

EMBEDDING, HEAD, OFFSETS, KNOWN = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"


def export(
    folder: Path,
    trained: TrainedHead,
    target: Model,
    verifier: str,
) -> Path:
    """Write a complete head, with the target's embedding and output rows.

    Args:
        folder: new, or one that was exported before.
        verifier: name under which these programs find the target.

    Raises:
        ValueError: for a head of another kind or target, and a folder that holds something else.
        OSError: where the disk refuses.
    """
    from safetensors.torch import save_file

    if trained.config.kind != "eagle":
        raise ValueError("speculators knows EAGLE heads alone; this drafter is of another kind")
    if trained.config.feature_sampling or trained.config.partial_alignment:
        raise ValueError("speculators knows no FSPAD heads; export one of the variant eagle-3")
    trained.target.require_model(target)
    if folder.exists() and any(folder.iterdir()) and not _is_speculator(folder):
        raise ValueError(f"{folder} holds something else than a speculator; choose another folder")
    says = _settings(trained, {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]})
    weights = _whole(trained, target)

    def build(partial: Path) -> None:
        (partial / "config.json").write_text(json.dumps(says, indent=2) + "\n", encoding="utf-8")
        # embedding and head may be one tensor of the target
        save_file(
            {name: each.clone() for name, each in weights.items()},
            partial / "model.safetensors",
            metadata={"format": "pt"},
        )

    return replace_folder(folder, build)


def _whole(trained: TrainedHead, target: Model) -> dict[str, Tensor]:
    """Weights of the head, and the target's embedding and output rows."""
    own, tokens = target.embeddings_and_head.weights(), as_tensor(trained.draft_tokens)
    weights = {name: as_tensor(each) for name, each in trained.weights.items()}
    weights.setdefault(HEAD, as_tensor(own.head)[tokens])
    weights[EMBEDDING] = as_tensor(own.embedding)
    weights = {name: each.detach().cpu().bfloat16() for name, each in weights.items()}
    if len(tokens) < target.vocab_size:
        known = torch.zeros(target.vocab_size, dtype=torch.bool)
        known[tokens] = True
        weights |= {OFFSETS: tokens - torch.arange(len(tokens)), KNOWN: known}
    return weights


def read(folder: Path, target: Model, name: str) -> TrainedHead:
    """Read an EAGLE-3 head of either layout, for a target.

    An output head equal to the target's is dropped, another one is kept.

    Args:
        target: the model that it was trained for, which these layouts do not tell from others.
        name: of the target.

    Raises:
        ValueError: in one line, for a folder that is none or not whole, for parts that an EAGLE
            head of draftwood does not have, and for another target.
    """
    require_ability(target, "embeddings_and_head", "a head of the speculators layout")
    says, weights = _says(folder), _weights(folder)
    layer = says.get("transformer_layer_config", says)
    weights = {each.replace("midlayer.", "layers.0."): weight for each, weight in weights.items()}
    tokens = _tokens(folder, weights, target.vocab_size)
    _require_embedding(folder, weights.pop(EMBEDDING, None), target)
    if HEAD not in weights:
        raise ValueError(f"{folder} has no {HEAD}, so it is no whole head; copy it again")
    if _same(weights[HEAD], as_tensor(target.embeddings_and_head.weights().head)[tokens]):
        weights.pop(HEAD)
    config = _config(folder, says, layer, weights, target.layers)
    if config.sizes.hidden != target.hidden_size:
        raise ValueError(
            f"{folder} was trained for hidden states of {config.sizes.hidden} entries, {name} has"
            f" {target.hidden_size}; name its own target"
        )
    require_parts(config, len(weights))
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


def _settings(trained: TrainedHead, verifier: dict[str, Any]) -> dict[str, Any]:
    """config.json of a head."""
    config, target = trained.config, trained.target
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": len(trained.draft_tokens),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": config.norms_features,
        "norm_output": config.feeds_normed,
        "embed_requires_grad": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(config.reads),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": _layer_settings(config, target.vocab_size),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }


def _layer_settings(config: Any, vocab: int) -> dict[str, Any]:
    """Decoder layers' settings, named as Llama's."""
    sizes = config.sizes
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": sizes.epsilon,
        "rope_theta": sizes.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": sizes.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }
    if config.window is not None:
        layer |= {
            "sliding_window": config.window,
            "layer_types": ["sliding_attention"] * config.layers,
        }
    return layer


def _config(
    folder: Path,
    says: Mapping[str, Any],
    layer: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    layers: int,
) -> Any:
    """Settings of an EAGLE head from what a config.json says."""
    rope = {**(layer.get("rope_scaling") or {}), **(layer.get("rope_parameters") or {})}
    lacking = {
        "a norm over all states together": says.get("norm_before_fc"),
        "another activation": layer.get("hidden_act", "silu") != "silu",
        "scaled rotary embeddings": rope.get("rope_type", "default") != "default",
    }
    for what, there in lacking.items():
        if there:
            raise ValueError(f"{folder} has {what}, which EAGLE heads of draftwood do not have")
    reads = says.get("eagle_aux_hidden_state_layer_ids")
    outputs = (says.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if reads is None:  # SpecForge counts outputs of layers
        reads = [2, layers // 2, layers - 3] if outputs is None else [i + 1 for i in outputs]
    windows = "sliding_attention" in (layer.get("layer_types") or ())
    try:
        heads = layer["num_attention_heads"]
        sizes = HeadSizes(
            hidden=layer["hidden_size"],
            intermediate_size=layer["intermediate_size"],
            heads=heads,
            num_kv_heads=layer.get("num_key_value_heads", heads),
            head_dim=layer.get("head_dim") or layer["hidden_size"] // heads,
            rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta", 10000.0)),
            epsilon=layer.get("rms_norm_eps", 1e-6),
        )
    except KeyError as error:
        raise ValueError(f"{folder / 'config.json'} does not say {error}") from None
    return config_type("eagle")(
        sizes,
        layers=layer.get("num_hidden_layers", 1) if "transformer_layer_config" in says else 1,
        reads=tuple(reads),
        norms_features=bool(says.get("fc_norm")),
        feeds_normed=bool(says.get("norm_output")),
        norm_before_residual=bool(says.get("norm_before_residual")),
        window=layer.get("sliding_window") if windows else None,
        own_head=len(weights[HEAD]) if HEAD in weights else 0,
    )


def _says(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        says = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no head: there is no config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}); copy it again") from None
    names = says.get("architectures") or [] if isinstance(says, dict) else []
    if says.get("speculators_model_type") != "eagle3" and "LlamaForCausalLMEagle3" not in names:
        raise ValueError(
            f"{path} describes no EAGLE-3 head of speculators or SafeAILab, but"
            f" {', '.join(names) or 'something else'}"
        )
    return says


def _is_speculator(folder: Path) -> bool:
    try:
        return bool(_says(folder))
    except (OSError, ValueError):
        return False


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    path, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if path.is_file():
        read_header(path)
        weights = load_file(path)
    elif pickled.is_file():
        weights = torch.load(pickled, map_location="cpu", weights_only=True)
    else:
        raise ValueError(f"{folder} has no model.safetensors; copy the whole folder again")
    for name, weight in weights.items():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise ValueError(f"{folder} has weights that are no numbers, in {name}")
    return {n: w.float() if w.is_floating_point() else w for n, w in weights.items()}


def _tokens(folder: Path, weights: dict[str, Tensor], vocab: int) -> Int[Tensor, " draft_vocab"]:
    """Draft vocabulary; removes both lists that translate it from the weights."""
    offsets, _ = weights.pop(OFFSETS, None), weights.pop(KNOWN, None)
    if offsets is None:
        return torch.arange(vocab)
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
