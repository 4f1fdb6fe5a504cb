"""Float weights of a GGUF file, under the names and in the layouts that Transformers saves."""

from collections.abc import Callable, Mapping

import numpy as np

from draftwood.arrays import Float, FloatType, to_bfloat16
from draftwood.loading.gguf_reader import Content, placed

Numbers = Float[np.ndarray, "..."]
OF_EXPERTS = ".mlp.experts."
MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}
"""Its own names of an expert's matrices."""


def float_tensors(content: Content, dtype: FloatType) -> dict[str, np.ndarray]:
    """Read all weights; those in bfloat16 as their bits.

    Raises:
        ValueError: as ``placed``.
    """
    rounded: Callable[[Numbers], np.ndarray] = to_bfloat16 if dtype == "bfloat16" else np.asarray
    found, experts = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for each in placed(content):
        home = experts if ".experts." in each.name else found
        values = each.floats(content.layout)
        home[each.name] = rounded(content.layout.side_by_side(each.stored.name, values))
    name = content.native.architecture
    if name == "MixtralForCausalLM":
        found = {
            key.replace(".mlp.gate.", ".block_sparse_moe.gate."): v for key, v in found.items()
        }
    if name == "Gemma4ForCausalLM":
        from draftwood.loading.gguf_gemma4 import joined_experts

        return found | joined_experts(experts)
    saved = _joined if name == "GptOssForCausalLM" else _apart
    return found | saved(experts, name)


def _apart(experts: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Each expert's matrices as tensors of their own."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        layer, _, rest = key.partition(OF_EXPERTS)
        part, _, kind = rest.partition(".")
        is_mixtral = name == "MixtralForCausalLM"
        above = f"{layer}.block_sparse_moe.experts" if is_mixtral else f"{layer}.mlp.experts"
        own = MIXTRAL[part] if is_mixtral else f"{part}_proj"
        found |= {f"{above}.{number}.{own}.{kind}": each for number, each in enumerate(values)}
    return found


def _joined(experts: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The experts of GPT-OSS: gates and what they gate take turns, and inputs come first."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        layer, _, rest = key.partition(OF_EXPERTS)
        part, _, kind = rest.partition(".")
        ending = "_bias" if kind == "bias" else ""
        if part == "down":
            found[f"{layer}{OF_EXPERTS}down_proj{ending}"] = _inputs_first(values)
        elif part == "gate":
            up = experts[f"{layer}{OF_EXPERTS}up.{kind}"]
            both = np.stack([values, up], axis=2).reshape(len(up), -1, *up.shape[2:])
            found[f"{layer}{OF_EXPERTS}gate_up_proj{ending}"] = _inputs_first(both)
    return found


def _inputs_first(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.swapaxes(1, 2)) if values.ndim == 3 else values
