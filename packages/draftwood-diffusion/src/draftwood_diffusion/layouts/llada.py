"""LLaDA (Nie et al. 2025, arXiv:2502.09992): a Llama in which every row sees all."""

from draftwood_diffusion.layouts.layout import FolderLayout

LLADA = FolderLayout(
    model_type="llada",
    decoder="llama",
    mask_token=126336,
    block_length=32,
    shifted=False,
    bidirectional=True,
    settings={
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "mlp_hidden_size": "intermediate_size",
        "max_sequence_length": "max_position_embeddings",
        "weight_tying": "tie_word_embeddings",
        "activation_type": "hidden_act",
        "vocab_size": "published_vocab_size",
        "embedding_size": "vocab_size",
    },
    tensors={
        "model.transformer.ff_out.": "lm_head.",
        "model.transformer.wte.": "model.embed_tokens.",
        "model.transformer.ln_f.": "model.norm.",
        "model.transformer.blocks.": "model.layers.",
        ".q_proj.": ".self_attn.q_proj.",
        ".k_proj.": ".self_attn.k_proj.",
        ".v_proj.": ".self_attn.v_proj.",
        ".attn_out.": ".self_attn.o_proj.",
        ".attn_norm.": ".input_layernorm.",
        ".ff_norm.": ".post_attention_layernorm.",
        ".ff_proj.": ".mlp.gate_proj.",
        ".up_proj.": ".mlp.up_proj.",
        ".ff_out.": ".mlp.down_proj.",
    },
    required={
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "alibi": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "attention_layer_norm": False,
    },
)
