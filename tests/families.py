"""Tiny models of many architectures, on every path that runs them, and what the models themselves
say.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from draftwood.models.model import ForwardInput, Layers, ModelOutput, ModelSession
from draftwood.models.native import NativeModel
from draftwood.tree import DraftTree
from draftwood_torch.lean.graphs import Graphs
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.loading.skeleton import auto_class
from draftwood_torch.models.submodules import list_of_layers
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.tensors import as_tensor
from tape import record

VOCAB = 40
TOLERANCE = 1e-4
WINDOW = 5  # far shorter than the sequences below
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
MIXED = {
    **GROUPED,
    "head_dim": 8,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
STATES = {  # wilder weights would make differences in rounding grow from layer to layer
    **GROUPED,
    "initializer_range": 0.1,
    "head_dim": 16,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 32},
}
SPACE = {
    **{**GROUPED, "initializer_range": 0.1, "mamba_n_heads": 4, "mamba_d_state": 32},
    **{"mamba_d_head": 16, "mamba_n_groups": 1},
}
MULTIPLIED = {
    **{"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.7},
    "attention_multiplier": 0.2,
}
SHARED = {
    **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "shared_expert_intermediate_size": 24,
}
CAPS = {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0}  # both bend a lot
TURNED = {"rope_type": "default", "rope_theta": 100.0}
BOTH = {
    "sliding_attention": TURNED,
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
}
GROWING = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0},
    **{"original_max_position_embeddings": 8, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5},
}
"""Queries grow within the texts below."""
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LENGTHS = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.3,
}
EAGER = {"attn_implementation": "eager"}

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "llama-eager": ("LlamaConfig", {**GROUPED, **EAGER}),
    "mistral-window": ("MistralConfig", {**GROUPED, "sliding_window": 4}),
    "llama-scaled": (
        "LlamaConfig",
        {
            **GROUPED,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama-biased": ("LlamaConfig", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "ministral3": ("Ministral3Config", {**GROUPED, "head_dim": 8, "rope_parameters": GROWING}),
    "ministral3-images": (
        "Mistral3Config",
        {
            "text_config": {
                **{**GROUPED, "model_type": "ministral3", "head_dim": 8},
                "rope_parameters": GROWING,
            },
            "vision_config": {
                **{"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16},
                **{"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
                **{"patch_size": 14, "head_dim": 8},
            },
            "image_token_index": VOCAB - 1,
            "tie_word_embeddings": False,
        },
    ),
    "seed-oss": ("SeedOssConfig", {**GROUPED, "head_dim": 8}),
    "ernie": ("Ernie4_5Config", {**GROUPED, "head_dim": 8}),
    "ernie-biased": ("Ernie4_5Config", {**GROUPED, "head_dim": 8, "use_bias": True}),
    "exaone4": (
        "Exaone4Config",
        {**GROUPED, "sliding_window": WINDOW, "sliding_window_pattern": 2},
    ),
    "glm4": ("Glm4Config", {**GROUPED, "head_dim": 8}),
    "exaone4-whole": (
        "Exaone4Config",
        {**GROUPED, "sliding_window": None, "layer_types": ["full_attention"] * 4},
    ),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2-window": (
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 8}),
    "qwen2-experts": (
        "Qwen2MoeConfig",
        {
            **{**GROUPED, **EXPERTS, "num_experts": 6, "mlp_only_layers": [1]},
            "shared_expert_intermediate_size": 24,
        },
    ),
    "gemma2": ("Gemma2Config", {**MIXED, **EAGER, **CAPS, "query_pre_attn_scalar": 20}),
    "gemma3": ("Gemma3TextConfig", {**MIXED, "rope_parameters": BOTH}),
    "gemma3-eager": ("Gemma3TextConfig", {**MIXED, **EAGER, **CAPS, "rope_parameters": BOTH}),
    "gemma3-images": (
        "Gemma3Config",
        {
            "text_config": {**MIXED, "rope_parameters": BOTH},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": VOCAB,
        },
    ),
    "gpt2": ("GPT2Config", LENGTHS),
    "gpt-neox": ("GPTNeoXConfig", SIZES),
    "opt": ("OPTConfig", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "phi": ("PhiConfig", {**GROUPED, "partial_rotary_factor": 0.5}),
    "phi3": (
        "Phi3Config",
        {**GROUPED, "rope_parameters": {**TURNED, "partial_rotary_factor": 0.5}},
    ),
    "phi3-long": (
        "Phi3Config",
        {
            **GROUPED,
            "sliding_window": WINDOW,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                **TURNED,
                "rope_type": "longrope",
                "short_factor": [1.0, 1.2, 1.5, 2.0],
                "long_factor": [1.0, 4.0, 9.0, 20.0],
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "stablelm": ("StableLmConfig", GROUPED),
    "stablelm-parallel": ("StableLmConfig", {**GROUPED, "use_parallel_residual": True}),
    "smollm3": ("SmolLM3Config", {**GROUPED, "no_rope_layer_interval": 2}),
    "olmo2": ("Olmo2Config", GROUPED),
    "deepseek-v3": ("DeepseekV3Config", {**SIZES, **LATENT, **EXPERTS}),
    "mixtral": ("MixtralConfig", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-experts": (
        "Qwen3MoeConfig",
        {
            **GROUPED,
            **EXPERTS,
            "num_experts": 20,
            "num_experts_per_tok": 3,
            "head_dim": 8,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-experts-to-one": (
        "Qwen3MoeConfig",
        {**GROUPED, **EXPERTS, "num_experts": 4, "norm_topk_prob": True},
    ),
    "olmoe": ("OlmoeConfig", {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2}),
    "granite-swa": (
        "GraniteSWAConfig",
        {
            **GROUPED,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "layer_rope_theta": [0, 10000.0, 10000.0, 0],
        },
    ),
    "gpt-oss": (
        "GptOssConfig",
        {
            **MIXED,
            "intermediate_size": 64,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "swiglu_limit": 0.7,  # both are often beyond it
            "swiglu_alpha": 3.0,
            "hidden_act": "gelu_pytorch_tanh",  # which it does not read
            "rope_parameters": {
                **TURNED,
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "truncate": False,
            },
        },
    ),
    "arcee": ("ArceeConfig", {**GROUPED, "head_dim": 16, "mlp_bias": True}),
    "nemotron": ("NemotronConfig", {**GROUPED, "attention_bias": True, "initializer_range": 0.2}),
    "starcoder2": ("Starcoder2Config", {**GROUPED, "sliding_window": WINDOW}),
    "glm4-experts": (
        "Glm4MoeConfig",
        {
            **{**GROUPED, **EXPERTS, "head_dim": 8, "n_routed_experts": 6, "n_shared_experts": 2},
            **{"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.8},
        },
    ),
    "ernie-experts": (
        "Ernie4_5_MoeConfig",
        {
            **{**GROUPED, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16},
            **{"moe_layer_interval": 2, "tie_word_embeddings": False},
        },
    ),
    "minimax-m2": (
        "MiniMaxM2Config",
        {
            **{**GROUPED, "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 8},
            "rope_parameters": {**TURNED, "partial_rotary_factor": 0.5},
        },
    ),
    "olmo3": ("Olmo3Config", {**MIXED, "rope_parameters": BOTH}),
    "gemma": ("GemmaConfig", {**GROUPED, "head_dim": 8}),
    "granite": ("GraniteConfig", {**GROUPED, **MULTIPLIED}),
    "granite-experts": ("GraniteMoeConfig", {**GROUPED, **MULTIPLIED, "num_local_experts": 6}),
    "granite-shared": (
        "GraniteMoeSharedConfig",
        {**GROUPED, **MULTIPLIED, "num_local_experts": 6, "shared_intermediate_size": 24},
    ),
    "cohere": ("CohereConfig", {**GROUPED, "logit_scale": 0.25}),
    "cohere2": ("Cohere2Config", {**MIXED, "attention_bias": True, "logit_scale": 0.25}),
    "falcon": ("FalconConfig", {**SIZES, "alibi": False}),
}
STATEFUL: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3.5": ("Qwen3_5TextConfig", STATES),
    "qwen3.5-images": (
        "Qwen3_5Config",
        {
            "text_config": STATES,
            "vision_config": {
                **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2},
                **{"patch_size": 14, "out_hidden_size": 32},
            },
            "image_token_id": VOCAB - 1,
            "model_class": "Qwen3_5ForConditionalGeneration",
        },
    ),
    "qwen3.5-experts": ("Qwen3_5MoeTextConfig", {**STATES, **SHARED}),
    "qwen3.5-experts-images": (
        "Qwen3_5MoeConfig",
        {
            "text_config": {**STATES, **SHARED},
            "vision_config": {
                **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2},
                **{"patch_size": 14, "out_hidden_size": 32},
            },
            "image_token_id": VOCAB - 1,
            "model_class": "Qwen3_5MoeForConditionalGeneration",
        },
    ),
    "lfm2": (
        "Lfm2Config",
        {
            **{**GROUPED, "initializer_range": 0.1, "conv_L_cache": 3, "block_multiple_of": 16},
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
    ),
    "lfm2-wide": (
        "Lfm2Config",
        {**GROUPED, "initializer_range": 0.1, "hidden_size": 80, "full_attn_idxs": [1, 3]},
    ),
    "granite-states": (
        "GraniteMoeHybridConfig",
        {
            **{**SPACE, "num_local_experts": 0, "shared_intermediate_size": 48},
            **{"layer_types": ["mamba", "mamba", "attention", "mamba"], **MULTIPLIED},
        },
    ),
    "granite-states-experts": (
        "GraniteMoeHybridConfig",
        {
            **{**SPACE, "num_local_experts": 6, "shared_intermediate_size": 24},
            **{"layer_types": ["mamba", "mamba", "attention", "mamba"], **MULTIPLIED},
            **{"position_embedding_type": "rope", "mamba_n_groups": 2},
            "time_step_limit": [0.01, 0.9],
        },
    ),
    "bamba": ("BambaConfig", {**SPACE, "attn_layer_indices": [1], "mamba_conv_bias": False}),
    "lfm2-experts": (
        "Lfm2MoeConfig",
        {
            **{**GROUPED, **EXPERTS, "initializer_range": 0.1, "num_experts": 6},
            **{"num_dense_layers": 1, "routed_scaling_factor": 1.5},
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
    ),
    "qwen3-next": ("Qwen3NextConfig", {**STATES, **SHARED, "mlp_only_layers": [1]}),
}
"""Families some of whose layers keep running states."""
HALVES = {  # layers with a window have other heads
    **{**MIXED, "initializer_range": 0.1, "head_dim": 16},
    **{"global_head_dim": 32, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 2.0},
}
WITH_INPUTS = {
    **{**HALVES, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
    **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
}
KEYS_AS_VALUES = {**HALVES, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
BESIDE = {
    **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2},
    "moe_intermediate_size": 16,
}
UNLIKE: dict[str, tuple[str, dict[str, object]]] = {
    "gemma4": ("Gemma4TextConfig", KEYS_AS_VALUES),
    "gemma4-inputs": ("Gemma4TextConfig", WITH_INPUTS),
    "gemma4-experts": ("Gemma4TextConfig", {**KEYS_AS_VALUES, **BESIDE}),
    "gemma4-images": (
        "Gemma4Config",
        {
            "text_config": {**WITH_INPUTS, "pad_token_id": 0},
            "vision_config": {
                **{"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16},
                **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
            },
            "audio_config": None,
            "model_class": "Gemma4ForConditionalGeneration",
        },
    ),
}
"""Families whose layers differ, or have inputs of their own."""
LEAN = (
    "llama",
    "llama-scaled",
    "llama-biased",
    "mistral-window",
    "seed-oss",
    "arcee",
    "nemotron",
    "starcoder2",
    "ernie",
    "exaone4",
    "glm4",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "stablelm",
    "stablelm-parallel",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3-eager",
    "phi3",
    "phi3-long",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "cohere",
    "cohere2",
)
GROWN = ("ministral3",)  # queries, by a position that no graph knows
VARIANTS = ("ernie-biased", "exaone4-whole")  # whose tensors or layers alone are others
WITH_IMAGES = ("gemma3-images", "ministral3-images")  # of which the text part runs
ROUTED = (
    "mixtral",
    "qwen2-experts",
    "qwen3-experts",
    "qwen3-experts-to-one",
    "olmoe",
    "gpt-oss",
    "glm4-experts",
    "ernie-experts",
    "minimax-m2",
    "granite-experts",
    "granite-shared",
)  # to experts
NATIVE = (*LEAN, *ROUTED, *GROWN, *VARIANTS, *STATEFUL, *UNLIKE, *WITH_IMAGES)
LEAN_PATHS = [f"{family}/{path}" for family in LEAN for path in ("lean", "recorded", "native")]
LEAN_PATHS += [f"{family}/{path}" for family in (*ROUTED, *GROWN) for path in ("lean", "native")]
LEAN_PATHS += [f"{family}/native" for family in UNLIKE if family != "gemma4-images"]
FAST = (
    "mistral-window/lean",
    "llama/recorded",
    "mistral-window/recorded",
    "llama/native",
    "mistral-window/native",
)
SOME = ("llama", "mistral-window", "gemma3", *FAST)
# in attention, positions or cache
DIFFERENT = (
    *(*SOME, "gemma2", "gpt2", "opt", "deepseek-v3", "gpt-oss"),
    *("qwen3/lean", "gemma2/lean", "cohere2/lean", "mixtral/lean"),
)


SEEDS = {"qwen3-next": 3, "qwen3-experts": 1}
"""Seeds of families that have experts with 0 between which rounding decides."""


def hf_model(family: str) -> PreTrainedModel:
    name = family.split("/")[0]
    return _hf_model(name, SEEDS.get(name, 0))


@cache
def _hf_model(family: str, seed: int = 0) -> PreTrainedModel:
    name, options = (FAMILIES | STATEFUL | UNLIKE)[family]
    options = {key: value for key, value in options.items() if key != "init_std" or family == "opt"}
    return random_model(name, options, seed)


def random_model(name: str, options: dict[str, object], seed: int = 0) -> PreTrainedModel:
    """A model of a configuration."""
    options = dict(options)
    attention, kind = options.pop("attn_implementation", None), options.pop("model_class", None)
    config: PreTrainedConfig = getattr(transformers, name)(**options)
    torch.manual_seed(seed)
    if kind is None:
        model = auto_class(config).from_config(config, attn_implementation=attention).eval()
    else:
        model = getattr(transformers, str(kind))(config).eval()
    with torch.no_grad():  # new norms are all alike, and a norm done twice would not be noticed
        weights = [each for name, each in model.named_buffers() if name.endswith(OF_BUFFERS)]
        vectors = [each for name, each in model.named_parameters() if _is_vector(name, each)]
        for parameter in (*vectors, *weights):
            parameter += torch.rand(parameter.shape) - 0.5
    return model


OF_BUFFERS = ("layer_scalar", "expert_bias", "correction_bias")
"""Ends of the names of weights that Transformers calls buffers."""


def _is_vector(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 1 or name.endswith("_bias")


def recorded(model: PreTrainedModel) -> LeanModel:
    """The lean path with runs recorded and played back, as on a GPU."""
    lean = LeanModel(model)
    lean.graphs = Graphs(record)
    return lean


PATHS = {"": TransformersModel, "lean": LeanModel, "recorded": recorded, "native": NativeModel}
AnyModel = TransformersModel | LeanModel | NativeModel


def model_of(family: str) -> AnyModel:
    """A family on its general path, or on another ("llama/lean")."""
    return PATHS[family.partition("/")[2]](hf_model(family))


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def some_tree(nodes: int, seed: int = 0) -> DraftTree:
    """A random tree that branches a lot and is deep enough to outgrow a window."""
    chance = random.Random(seed)
    parents = [-1] + [chance.randrange(max(0, node - 4), node) for node in range(1, nodes)]
    return DraftTree.of(some_tokens(nodes, seed + 1), parents)


def text_to(tree: DraftTree, node: int) -> list[int]:
    return [tree.token_list[n] for n in [0, *tree.path_to(node)]]


SAID: WeakKeyDictionary[PreTrainedModel, dict[tuple[int, ...], Tensor]] = WeakKeyDictionary()


@torch.no_grad()
def plainly(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """The model's own logits at every token, without any cache; said once for all paths."""
    said, text = SAID.setdefault(model, {}), tuple(tokens)
    if text not in said:
        said[text] = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return said[text]


def leaf_paths(tree: DraftTree) -> list[list[int]]:
    """The nodes from the root to each leaf; every node is on one of these paths."""
    parents = set(tree.parents.tolist())
    return [[0, *tree.path_to(node)] for node in range(len(tree)) if node not in parents]


def at_nodes(model: PreTrainedModel, before: Sequence[int], tree: DraftTree) -> Tensor:
    """The model's own logits at every node, without any tree: each path is a text."""
    rows: dict[int, Tensor] = {}
    for path in leaf_paths(tree):
        text = [*before, *(tree.token_list[node] for node in path)]
        rows |= zip(path, plainly(model, text)[-len(path) :], strict=True)
    return torch.stack([rows[node] for node in range(len(tree))])


@torch.no_grad()
def ending_of(model: PreTrainedModel, text: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Run a text; return the last layer's output, its state behind the norm, and the logits."""
    found: list[Tensor] = []
    named = list_of_layers(model)
    assert named is not None
    hook = named[1][-1].register_forward_hook(
        lambda module, given, result: found.append(
            result if isinstance(result, Tensor) else result[0]
        )
    )
    try:
        out = model(torch.tensor([list(text)]), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    last = found[0] if found[0].ndim == 3 else found[0][None]
    return last[0], out.hidden_states[-1][0], out.logits[0]


def apart(here: Tensor, there: Tensor) -> float:
    """The largest difference, in units of the spread of what it should be."""
    assert here.shape == there.shape
    return float((here.float() - there.float()).abs().max() / there.float().std())


def skipping(*layers: int) -> Layers:
    """All but these decoder layers."""
    return Layers(without_attention=frozenset(layers), without_mlp=frozenset(layers))


def through(
    session: ModelSession,
    tree: DraftTree,
    layers: Layers,
    first: int = 0,
    hidden: tuple[int, ...] = (),
) -> ModelOutput:
    """A pass over a tree through some layers."""
    return session.model.forward([ForwardInput(session, tree, first, hidden, layers)])[0]


def assert_close(here: Any, there: Any) -> None:
    here, there = as_tensor(here), as_tensor(there)
    assert here.shape == there.shape
    assert (here - there).abs().max() <= TOLERANCE


def deepest_path(tree: DraftTree) -> list[int]:
    return [0, *tree.path_to(int(tree.depths.argmax()))]
