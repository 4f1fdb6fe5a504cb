"""Checkpoints of llama2.c (legacy format, version 0).

They are read and rewritten as a Transformers folder in float32.
"""

import struct
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.arrays import Float
from draftwood.loading.gguf_names import halves
from draftwood.storage.safetensors import map_file, write_arrays
from draftwood.storage.weights import save_settings

Numbers = Float[np.ndarray, "..."]
HEADER = struct.Struct("<7i")


def convert_llama2c(checkpoint: Path, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors into `folder`.

    The tokenizer is the caller's.

    Raises ValueError when the file is not a whole llama2.c checkpoint.
    """
    sizes, weights = read_llama2c(checkpoint)
    config: dict[str, Any] = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32"},
        **sizes,
        **{"hidden_act": "silu", "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    # Training texts were joined by the begin token alone, so the model ends a story with it.
    ends = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    folder.mkdir(parents=True, exist_ok=True)
    save_settings(folder, {"config.json": config, "generation_config.json": ends})
    write_arrays(folder / "model.safetensors", weights)


def read_llama2c(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The sizes of the model by Transformers' keys, and its weights by the names of a Llama."""
    data = map_file(checkpoint) if checkpoint.stat().st_size else np.empty(0, np.uint8)
    if data.size < HEADER.size:
        raise ValueError(
            f"{checkpoint} has {data.size} bytes, too few for a llama2.c checkpoint; fetch it again"
        )
    dim, hidden, layers, heads, kv_heads, vocab, length = HEADER.unpack(
        data[: HEADER.size].tobytes()
    )
    tied = vocab > 0  # a negative vocabulary size is the format's mark for a separate output matrix
    vocab = abs(vocab)
    if (
        min(dim, hidden, layers, heads, kv_heads, vocab, length) < 1
        or dim % heads
        or heads % kv_heads
    ):
        raise ValueError(
            f"{checkpoint} does not begin with the header of a llama2.c checkpoint; fetch it again"
        )
    head = dim // heads
    shapes = _shapes(dim, hidden, layers, kv_heads * head, vocab, length, head, tied)
    needed = HEADER.size + 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    if data.size < needed:
        raise ValueError(
            f"{checkpoint} has {data.size} bytes, its header promises {needed}; fetch it again"
        )
    values = np.frombuffer(data[HEADER.size : needed].tobytes(), dtype="<f4")
    ends = accumulate((int(np.prod(shape)) for shape in shapes.values()), initial=0)
    tensors = {
        name: values[begin:end].reshape(shape)
        for (name, shape), (begin, end) in zip(shapes.items(), pairwise(ends), strict=True)
    }
    sizes = {
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": length,
        "tie_word_embeddings": tied,
    }
    return sizes, _rename(tensors, heads, kv_heads)


def _shapes(
    dim: int, hidden: int, layers: int, kv_dim: int, vocab: int, length: int, head: int, tied: bool
) -> dict[str, tuple[int, ...]]:
    """The tensors in the order of the file."""
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (vocab, dim),
        "attention_norm": (layers, dim),
        "q": (layers, dim, dim),
        "k": (layers, kv_dim, dim),
        "v": (layers, kv_dim, dim),
        "o": (layers, dim, dim),
        "ffn_norm": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "final_norm": (dim,),
        "cosines": (length, head // 2),
        "sines": (length, head // 2),
    }
    return shapes if tied else {**shapes, "output": (vocab, dim)}


def _rename(tensors: dict[str, Numbers], heads: int, kv_heads: int) -> dict[str, Numbers]:
    weights = {
        "model.embed_tokens.weight": tensors["embedding"],
        "model.norm.weight": tensors["final_norm"],
    }
    if "output" in tensors:
        weights["lm_head.weight"] = tensors["output"]
    names = {
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "down": "mlp.down_proj",
        "up": "mlp.up_proj",
    }
    for source, name in names.items():
        for layer, tensor in enumerate(tensors[source]):
            if source in ("q", "k"):
                # llama2.c rotates neighbours (0, 1), Transformers rotates (0, head // 2)
                tensor = tensor[halves(len(tensor), heads if source == "q" else kv_heads)]
            weights[f"model.layers.{layer}.{name}.weight"] = np.ascontiguousarray(tensor)
    return weights
