"""Tensors in a folder's safetensors, as a decoder is read from them: mapped, and under the names
that Transformers gives them.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.arrays import FloatType, as_floats, to_bfloat16
from draftwood.loading.mxfp4 import CODES, SCALES, ScalesApart, joined
from draftwood.models.configuration import ModelConfiguration, UnknownConfigurationError
from draftwood.models.description import FLOAT_TYPES
from draftwood.models.shapes import TABLES, is_never_rounded
from draftwood.storage.safetensors import map_arrays
from draftwood.storage.weights import WHOLE

INDEX = f"{WHOLE}.index.json"
OF_TEXT_PART = [
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?language_model\.(model\.)?", "model.language_model."),
]
LIKE_MIXTRAL = ("MixtralForCausalLM", "MiniMaxM2ForCausalLM", "Lfm2MoeForCausalLM")
"""Architectures that have Mixtral's names of an expert's matrices."""
MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}
OF_MIXTRAL = [
    (r"\.block_sparse_moe\.", ".mlp."),
    *((rf"(\.experts\.\d+)\.{own}\.", rf"\1.{part}_proj.") for part, own in MIXTRAL.items()),
]
LIKE_GRANITE = [
    (r"\.router\.layer\.", ".router."),
    (r"\.block_sparse_moe\.input_linear\.weight", ".block_sparse_moe.experts.gate_up_proj"),
    (r"\.block_sparse_moe\.output_linear\.weight", ".block_sparse_moe.experts.down_proj"),
]
RENAMED: dict[str, list[tuple[str, str]]] = {
    **dict.fromkeys(
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM", "GraniteMoeHybridForCausalLM"),
        LIKE_GRANITE,
    ),
    **dict.fromkeys(LIKE_MIXTRAL, OF_MIXTRAL),
    "Ernie4_5_MoeForCausalLM": [(r"\.mlp\.moe_statics\.", ".mlp.gate.moe_statics.")],
}
"""Names of tensors in files and in Transformers, by architecture; others with a text part have
``OF_TEXT_PART``.
"""
FLOAT: FloatType = "float32"
OF_EXPERTS = re.compile(r"(?P<at>.*\.experts)\.(?P<part>gate|up|down)\.(?P<kind>weight|bias)")
INTERLEAVED = ("GptOssForCausalLM",)
"""Architectures whose experts have inputs first, and gates next to what they gate."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a model as Transformers chooses them; none where it reads other files."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if not (folder / INDEX).is_file():
        return []
    told = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [folder / name for name in sorted(set(told["weight_map"].values()))]


class StoredTensors:
    """Gives the tensors of a folder by name, as ``describe`` asks for them; None where absent.

    Args:
        arrays: of all files, by their names there.
        config: of the model.
        dtype: of what is given, but for what is never rounded; matrices that need no rounding for
            it stay as they are stored.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], config: ModelConfiguration, dtype: FloatType = FLOAT
    ) -> None:
        self.config: ModelConfiguration = config
        self.dtype: FloatType = dtype
        self.arrays = _by_names_of_transformers(arrays, config)
        self._used = set[str]()

    def __call__(self, name: str) -> Any:
        of_experts = OF_EXPERTS.fullmatch(name)
        return (
            self._stored(name) if of_experts is None else self._of_experts(**of_experts.groupdict())
        )

    def __contains__(self, name: str) -> bool:
        """True if there is a tensor, or what the one of all experts is made of; reads none."""
        of_experts = OF_EXPERTS.fullmatch(name)
        if of_experts is None:
            return name in self.arrays
        ways = self._ways(**of_experts.groupdict())
        return any(all(each in self.arrays for each in names) for names in ways)

    @property
    def unused(self) -> list[str]:
        """Names of the tensors that nobody asked for."""
        return sorted(self.arrays.keys() - self._used)

    def _stored(self, name: str) -> Any:
        found = self.arrays.get(name)
        if found is None:
            return None
        self._used.add(name)
        dtype = FLOAT if is_never_rounded(self.config, name) else self.dtype
        is_matrix = found.ndim > 1 and not name.endswith(TABLES)
        return found if is_matrix and dtype == FLOAT else cast(found, dtype)

    def _ways(self, at: str, part: str, kind: str) -> list[list[str]]:
        """Names under which the matrices of all experts, or their biases, may be stored."""
        each, whole = self._apart(at, part, kind), _together(at, part)
        if kind == "bias":
            return [each, [f"{whole}_bias"]]
        return [each, [whole], [f"{whole}{CODES}"], [f"{whole}{SCALES}"]]

    def _apart(self, at: str, part: str, kind: str) -> list[str]:
        count = self.config.expert_count
        return [f"{at}.{number}.{part}_proj.{kind}" for number in range(count)]

    def _of_experts(self, at: str, part: str, kind: str) -> Any:
        """The matrices of all experts, or their biases, however they are stored."""
        if f"{at}.0.{part}_proj.{kind}" in self.arrays:
            each = list(map(self._stored, self._apart(at, part, kind)))
            return None if any(found is None for found in each) else each
        whole = _together(at, part)
        if f"{whole}{CODES}" in self.arrays or f"{whole}{SCALES}" in self.arrays:
            return self._in_blocks(whole, part, kind)
        found = self._stored(whole if kind == "weight" else f"{whole}_bias")
        return None if found is None else self._part(found, part)

    def _part(self, found: np.ndarray, part: str) -> np.ndarray:
        """One of what lies together; matrices become [experts outputs inputs]."""
        is_interleaved = self.config.architecture in INTERLEAVED
        if is_interleaved and found.ndim == 3:
            found = found.swapaxes(1, 2)
        half = found.shape[1] // 2
        pieces = (slice(0, None, 2), slice(1, None, 2)) if is_interleaved else (
            slice(0, half), slice(half, None)
        )  # fmt: skip
        return found if part == "down" else found[:, pieces[part == "up"]]

    def _in_blocks(self, whole: str, part: str, kind: str) -> Any:
        if kind == "bias":
            found = self._stored(f"{whole}_bias")
            return None if found is None else self._part(found, part)
        self._used |= {f"{whole}{CODES}", f"{whole}{SCALES}"}
        blocks: ScalesApart = joined(self.arrays, whole)
        return blocks if part == "down" else blocks[int(part == "up") :: 2]


def _together(at: str, part: str) -> str:
    """Name of the matrices of all experts, of which gates lie with what they gate."""
    return f"{at}.{'down' if part == 'down' else 'gate_up'}_proj"


def cast(numbers: np.ndarray, dtype: FloatType) -> np.ndarray:
    """Round to the nearest numbers of a type; bfloat16 comes as its bits."""
    if FLOAT_TYPES.get(numbers.dtype.name, numbers.dtype.name) == dtype:
        return numbers
    floats = as_floats(numbers)
    if dtype == "bfloat16":
        return to_bfloat16(floats)
    with np.errstate(over="ignore"):  # they become infinite, as elsewhere
        return floats.astype(np.float16) if dtype == "float16" else floats


def _by_names_of_transformers(
    arrays: Mapping[str, np.ndarray], config: ModelConfiguration
) -> dict[str, np.ndarray]:
    found, prefix = dict[str, np.ndarray](), config.family.prefix
    usual = [] if prefix == "model." else OF_TEXT_PART
    for name, array in arrays.items():
        for pattern, ours in RENAMED.get(config.architecture, usual):
            name = re.sub(pattern, ours, name)
        found[name] = array
    if not any(name.startswith(prefix) for name in found):  # saved without an output head
        found = {
            name if name.startswith("lm_head.") else prefix + name: found[name] for name in found
        }
    embedding = f"{prefix}embed_tokens.weight"
    if config.get("tie_word_embeddings") and embedding not in found and "lm_head.weight" in found:
        found[embedding] = found.pop("lm_head.weight")
    return found


def stored_type(told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> FloatType:
    """The type that a model is loaded in by default: by its config.json, else as it is stored.

    Raises:
        UnknownConfigurationError: where it is none of ours, or there are several.
    """
    says = told.get("dtype") or told.get("torch_dtype")
    names = {each.dtype.name for each in arrays.values() if each.dtype.name in FLOATS}
    found = {str(says)} if says is not None else {FLOATS[name] for name in names}
    for name in sorted(found):
        if len(found) == 1 and name in FLOATS.values() and name != "float64":
            return name  # type: ignore[return-value]
    raise UnknownConfigurationError(f"its weights are {' and '.join(sorted(found))}")


FLOATS = {**FLOAT_TYPES, "float32": "float32", "float64": "float64"}


def holds_floats(name: str, array: np.ndarray) -> bool:
    """True unless an array is a weight of another type."""
    return array.dtype.name in FLOATS or not name.endswith(".weight")


def mapped(folder: Path) -> dict[str, np.ndarray]:
    """Map all tensors of a folder, by the names in its files."""
    return {name: each for path in weight_files(folder) for name, each in map_arrays(path).items()}
