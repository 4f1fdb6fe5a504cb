"""GGUF files of tiny models, written as llama.cpp's converter writes them: its names, its layouts,
its settings.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel

TOKENS = ["<s>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "Ġt"]
MERGES = ["Ġ a", "Ġ t"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
Kind = Callable[[str], gguf.GGMLQuantizationType]
SHIFTED_NORMS = ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe", "qwen3next")
INTERLEAVED = (
    *("llama", "smollm3", "granite", "mistral3", "internlm2", "granitemoe", "granitehybrid"),
)
WHOLE = {
    "self_attn.sinks": "attn_sinks.weight",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    **dict.fromkeys(
        (
            "feed_forward.expert_bias",
            "mlp.gate.moe_statics.e_score_correction_bias",
            "mlp.gate.e_score_correction_bias",
            "mlp.e_score_correction_bias",
        ),
        "exp_probs_b.bias",
    ),
}
"""Tensors of a layer that stay whole, and their names in files."""


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str = "llama",
    settings: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType | Kind | None = None,
    split: int = 0,
    encode: Callable[[np.ndarray], np.ndarray] | None = None,
    pre: str | None = "gpt-2",
    merges: Sequence[str] = (),
    pieces: Sequence[str] = (),
    tokenizer: Mapping[str, int] | None = None,
) -> list[Path]:
    """Write a model; the files that came out.

    Args:
        path: of the file; the parts of a split one are named after it.
        settings: more of them, without the architecture in front.
        tensors: more of them, in float32.
        kind: how matrices are stored, all or by name; None for float32.
        split: most tensors in one file; 0 for one file.
        encode: makes a matrix's blocks, for types that the ``gguf`` package does not write.
        pre: how the tokenizer splits text first; None does not say it.
        merges: more of the tokenizer's; each makes a token.
        pieces: tokens of SentencePiece's kind in place of byte-level ones.
        tokenizer: ids of more special tokens, by their keys.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    for key, value in (shape_of(model.config) | dict(settings or {})).items():
        _add(writer, f"{architecture}.{key}", value)
    _add_pieces(writer, pieces) if pieces else _add_tokenizer(writer, pre, merges)
    for key, number in (tokenizer or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)
    for name, values in (converted(model, architecture) | dict(tensors or {})).items():
        own = kind if kind is None or isinstance(kind, gguf.GGMLQuantizationType) else kind(name)
        if own is not None and values.ndim > 1 and not name.endswith(".bias"):
            blocks = encode(values) if encode else gguf.quantize(values, own)
            writer.add_tensor(name, blocks, raw_dtype=own)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}*.gguf"))


def shape_of(config: Any) -> dict[str, Any]:
    """The settings that the converter writes for every decoder; layers that differ from the first
    kind's are told beside them.
    """
    if config.model_type == "gemma4_text":
        config = config.per_layer_config["sliding_attention"]
    heads = config.num_attention_heads
    shape = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": 4 * config.hidden_size
        if config.model_type == "gpt2"
        else config.intermediate_size,
        "attention.head_count": heads,
        "vocab_size": config.vocab_size,
    }
    if config.model_type == "gpt2":
        return shape | {"attention.layer_norm_epsilon": config.layer_norm_epsilon}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    is_lfm2 = config.model_type in ("lfm2", "lfm2_moe")
    for kind, names in {
        "rms_": ("norm_eps",) if is_lfm2 else ("rms_norm_eps",),
        "": ("layer_norm_eps", "norm_epsilon", *(("norm_eps",) * (not is_lfm2))),
    }.items():
        shape |= {
            f"attention.layer_norm_{kind}epsilon": getattr(config, name)
            for name in names
            if hasattr(config, name)
        }
    return shape | {
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(rope["rope_theta"]),
    }


def converted(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The weights under llama.cpp's names and in its layouts."""
    found = laid_out(model.state_dict(), architecture, model.config)
    return found | (still_pairs(model.config) if architecture == "gemma4" else {})


def still_pairs(config: Any) -> dict[str, np.ndarray]:
    """Gemma 4's pairs that are not turned, which the converter tells by factors."""
    size = config.per_layer_config["full_attention"].head_dim
    turned = int(size * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    return {"rope_freqs.weight": np.array([1.0] * turned + [1e30] * (size // 2 - turned))}


def laid_out(
    state: Mapping[str, torch.Tensor], architecture: str, config: Any
) -> dict[str, np.ndarray]:
    """Tensors of a model under llama.cpp's names and in its layouts."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    found = {}
    for name, tensor in state.items():
        values = tensor.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if (own := WHOLE.get(".".join(name.split(".")[3:]))) is not None:
            found[f"blk.{name.split('.')[2]}.{own}"] = values
        elif name.endswith(".in_proj_qkvz.weight"):
            found |= _states_apart(f"blk.{name.split('.')[2]}.", values, config)
        elif ".shared_mlp." in name:
            found |= _shared_network(name, values, config)
        elif ".experts." in name:
            found |= _experts(name, values, architecture)
        else:
            known = name.replace(".dt_bias", ".dt_proj.bias").replace(
                "_moe.router", "_moe.router.layer"
            )
            told = names.get_name(known, try_suffixes=(".weight", ".bias"))
            assert told is not None, name
            found[told] = _laid_out(name, values, architecture, config)
    return found


def _states_apart(before: str, values: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """Inputs of recurrences of Qwen3-Next: the gate apart from all else, head by head."""
    key, keys = config.linear_key_head_dim, config.linear_num_key_heads
    gate = config.linear_value_head_dim * config.linear_num_value_heads // keys
    heads = np.split(values.reshape(keys, -1, values.shape[1]), [key, 2 * key, 2 * key + gate], 1)
    *fed, gates = (each.reshape(-1, values.shape[1]) for each in heads)
    return {
        f"{before}attn_qkv.weight": np.concatenate(fed),
        f"{before}attn_gate.weight": gates,
    }


def _shared_network(name: str, values: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """Granite's: gates apart from what they gate; it stands alone where there are no experts."""
    before = f"blk.{name.split('.')[2]}.ffn_"
    ending = "_shexp.weight" if config.num_local_experts else ".weight"
    if name.endswith("output_linear.weight"):
        return {f"{before}down{ending}": values}
    gate, up = np.split(values, 2)
    return {f"{before}gate{ending}": gate, f"{before}up{ending}": up}


def _state_space(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Granite's: decays are no logarithms, columns are apart, and norms come by groups."""
    if name == "norm.weight":
        return values.reshape(config.mamba_n_groups, -1)
    if name in ("A_log", "D"):
        return (-np.exp(values) if name == "A_log" else values).reshape(-1, 1)
    return values.squeeze(1) if name == "conv1d.weight" else values


def _delta_rule(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Qwen3.5's: heads of values that share a key lie far apart, which Qwen3-Next's do not, and the
    decay is no logarithm.
    """
    keys, size = config.linear_num_key_heads, config.linear_value_head_dim
    before = 2 * keys * config.linear_key_head_dim

    def apart(rows: np.ndarray, size: int) -> np.ndarray:
        if config.model_type == "qwen3_next":
            return rows
        heads = rows.reshape(keys, -1, size, *rows.shape[1:])
        return heads.swapaxes(0, 1).reshape(rows.shape)

    if name == "A_log":
        return -np.exp(apart(values, 1))
    if name.startswith(("dt_bias", "in_proj_a", "in_proj_b")):
        return apart(values, 1)
    if name.startswith("in_proj_z"):
        return apart(values, size)
    if name.startswith("out_proj"):
        return apart(values.T, size).T
    if name.startswith(("in_proj_qkv", "conv1d")):
        values = values.squeeze(1) if values.ndim == 3 else values
        return np.concatenate([values[:before], apart(values[before:], size)])
    return values


def _experts(name: str, values: np.ndarray, architecture: str) -> dict[str, np.ndarray]:
    """Gates and what they gate apart; in GPT-OSS they take turns, and inputs come first."""
    before, which = f"blk.{name.split('.')[2]}.ffn_", name.split(".")[-1]
    kind = "bias" if which.endswith("_bias") else "weight"
    if architecture == "gpt-oss" and kind == "weight":
        values = values.swapaxes(1, 2)
    if which.startswith("down_proj"):
        return {f"{before}down_exps.{kind}": values}
    half = values.shape[1] // 2
    gate, up = (
        (values[:, ::2], values[:, 1::2])
        if architecture == "gpt-oss"
        else (values[:, :half], values[:, half:])
    )
    return {f"{before}gate_exps.{kind}": gate, f"{before}up_exps.{kind}": up}


def _laid_out(name: str, values: np.ndarray, architecture: str, config: Any) -> np.ndarray:
    if architecture in INTERLEAVED and name.split(".")[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if name.endswith("conv.conv.weight"):
        return values.squeeze(1)
    if ".mamba." in name:
        return _state_space(name.partition(".mamba.")[2], values, config)
    if ".linear_attn." in name:
        return _delta_rule(name.partition(".linear_attn.")[2], values, config)
    if architecture in SHIFTED_NORMS and name.endswith("norm.weight"):
        return values + 1
    if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return values.T
    return values[0] if name.endswith("shared_expert_gate.weight") else values


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tokenizer(writer: gguf.GGUFWriter, pre: str | None, merges: Sequence[str]) -> None:
    tokens = [*TOKENS, *(merge.replace(" ", "") for merge in merges)]
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges([*MERGES, *merges])
    _add_special(writer)


def _add_pieces(writer: gguf.GGUFWriter, pieces: Sequence[str]) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*pieces])
    writer.add_token_types([3, 3, 3, *[6 if each[:3] == "<0x" else 1 for each in pieces[3:]]])
    writer.add_token_scores([-float(number) for number in range(len(pieces))])
    _add_special(writer)


def _add_special(writer: gguf.GGUFWriter) -> None:
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_chat_template(TEMPLATE)
