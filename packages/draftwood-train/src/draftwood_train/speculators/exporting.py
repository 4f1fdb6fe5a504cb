"""Export EAGLE-3 heads in the layout of the ``speculators`` package, which vLLM reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.storage.atomic import replace_folder
from draftwood_torch.tensors import as_tensor
from draftwood_train.speculators.layout import EMBEDDING, HEAD, KNOWN, OFFSETS, settings_of

VERSION = "0.9.0"
"""Version of the speculators package whose layout is written."""

LLAMA = "LlamaForCausalLM"


def export(
    folder: Path,
    trained: TrainedHead,
    target: Model,
    verifier: str,
    architectures: Sequence[str] = (),
) -> Path:
    """Write a complete head, with the target's embedding and output rows.

    Args:
        folder: new, or one that was exported before.
        verifier: name under which these programs find the target.
        architectures: of the target, by the names of Transformers' classes; none for Llama's.

    Raises:
        ValueError: for a head of another kind or target, and a folder that holds something else.
        OSError: where the disk refuses.
    """
    from safetensors.torch import save_file

    if trained.config.kind != "eagle":
        raise ValueError("speculators knows EAGLE heads alone; this drafter is of another kind")
    if trained.config.feature_sampling or trained.config.partial_alignment:
        raise ValueError("speculators knows no FSPAD heads; export one of the variant eagle-3")
    if target.layers in trained.config.reads:
        raise ValueError(
            "speculators knows no heads that read the state behind the last layer, as those of the"
            " variant eagle-1; export one of the variant eagle-3"
        )
    trained.target.require_model(target)
    if folder.exists() and any(folder.iterdir()) and not _is_speculator(folder):
        raise ValueError(f"{folder} holds something else than a speculator; choose another folder")
    told = {"name_or_path": verifier, "architectures": list(architectures or [LLAMA])}
    says = _settings(trained, told, target.context_length)
    weights = _whole(trained, target)

    def build(partial: Path) -> None:
        (partial / "config.json").write_text(json.dumps(says, indent=2) + "\n", encoding="utf-8")
        path = partial / "model.safetensors"
        # embedding and head may be one tensor of the target
        copies = {name: each.clone() for name, each in weights.items()}
        save_file(copies, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors makes it unreadable for others

    return replace_folder(folder, build)


def _whole(trained: TrainedHead, target: Model) -> dict[str, Tensor]:
    """Weights of the head, and the target's embedding and output rows.

    The rows are scaled as the target's logits are, as readers multiply with them alone.
    """
    own, tokens = target.embeddings_and_head.weights(), as_tensor(trained.draft_tokens)
    weights = {name: as_tensor(each) for name, each in trained.weights.items()}
    if HEAD not in weights:
        if own.head_bias is not None:
            raise ValueError(
                "speculators knows no output heads with a bias, as this target's, which the head"
                " shares; export a head with an output head of its own"
            )
        weights[HEAD] = as_tensor(trained.rows_of(target))
    weights[EMBEDDING] = as_tensor(own.embedding)
    weights = {name: each.detach().cpu().bfloat16() for name, each in weights.items()}
    if len(tokens) < target.vocab_size:
        known = torch.zeros(target.vocab_size, dtype=torch.bool)
        known[tokens] = True
        weights |= {OFFSETS: tokens - torch.arange(len(tokens)), KNOWN: known}
    return weights


def _settings(
    trained: TrainedHead, verifier: dict[str, Any], context: int | None
) -> dict[str, Any]:
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
        "transformer_layer_config": _layer_settings(config, target.vocab_size, context),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }


def _layer_settings(config: Any, vocab: int, context: int | None) -> dict[str, Any]:
    """Decoder layers' settings, named as Llama's.

    Args:
        context: most tokens of a text of the target; readers take 2,048 where it is not told.
    """
    sizes = config.sizes
    layer = {
        "model_type": "llama",
        "architectures": [LLAMA],
        "vocab_size": vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_aux_hidden_states": len(config.reads),  # vLLM would take three
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
    if context is not None:
        layer["max_position_embeddings"] = context
    if config.window is not None:
        layer |= {
            "sliding_window": config.window,
            "layer_types": ["sliding_attention"] * config.layers,
        }
    return layer


def _is_speculator(folder: Path) -> bool:
    try:
        return bool(settings_of(folder))
    except (OSError, ValueError):
        return False
