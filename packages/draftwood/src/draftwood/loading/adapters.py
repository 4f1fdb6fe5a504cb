"""LoRA adapters as PEFT writes them, added to the weights of the model that they change.

Hu et al. 2021 (arXiv:2106.09685): a matrix W becomes W + scale B A, with A [rank inputs] and
B [outputs rank]. Nothing of PEFT is imported.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.arrays import Float, Int, as_floats
from draftwood.loading import hub
from draftwood.loading.folders import ADAPTER, ADAPTER_WEIGHTS, MERGE
from draftwood.loading.names import is_hub_id
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.configuration_class import APART
from draftwood.models.recurrent_layers import Order, orders, state_parts
from draftwood.models.shapes import SMALL_OF_STATES, matrix_shapes, tensor_shapes
from draftwood.native.matrix import Adapted
from draftwood.storage.atomic import sha256
from draftwood.storage.home import expanded
from draftwood.storage.safetensors import map_arrays, read_header
from draftwood.storage.weights import read_settings

WEIGHTS = f"{ADAPTER_WEIGHTS}safetensors"
TENSOR = re.compile(r"(base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
TEXT_PARTS = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Beginnings of names of the same modules in the classes of one model."""
MORE = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters"),
    *("layer_replication", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config"),
    *("monteclora_config", "kasa_config", "velora_config"),
)
"""Settings by which an adapter does more than add products to matrices."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the model's own weights as they are."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """Change of one matrix.

    Attributes:
        down: A, [rank inputs].
        up: B by the scale, [outputs rank].
    """

    down: Float[np.ndarray, "rank inputs"]
    up: Float[np.ndarray, "outputs rank"]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the matrix."""
        return len(self.up), self.down.shape[1]

    def ordered(self, outputs: Order, inputs: Order) -> "LowRank":
        """The same of a matrix with another order of outputs and inputs."""
        return LowRank(
            self.down if inputs is None else self.down[:, inputs],
            self.up if outputs is None else self.up[outputs],
        )

    @property
    def product(self) -> Float[np.ndarray, "outputs inputs"]:
        """The sum's second part, [outputs inputs]."""
        return self.up @ self.down


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """Changes of a model's matrices.

    Attributes:
        folder: that they were read from.
        base: name of the model that they were trained for; empty where the folder does not say.
        changes: by the names of the modules.
        mark: tells these changes from others.
    """

    folder: Path
    base: str
    changes: Mapping[str, LowRank]
    mark: str

    @classmethod
    def read(cls, name: str) -> "LoraAdapter":
        """Read an adapter by its folder or Hugging Face id.

        Raises:
            FileNotFoundError: where there is none.
            ValueError: for files that are damaged, and for an adapter of another kind.
        """
        folder = adapter_folder(name)
        settings, arrays = _settings_in(folder), map_arrays(folder / WEIGHTS)
        pairs = dict[str, dict[str, np.ndarray]]()
        for tensor, array in arrays.items():
            found = TENSOR.fullmatch(tensor)
            assert found is not None  # by ``adapter_folder``
            pairs.setdefault(found["module"], {})[found["side"]] = as_floats(array)
        changes = {module: _change(folder, settings, module, pairs[module]) for module in pairs}
        told = json.dumps({each: settings.get(each) for each in SCALING}, sort_keys=True)
        digest = hashlib.sha256(f"{told} {sha256(folder / WEIGHTS)}".encode()).hexdigest()
        base = str(settings.get("base_model_name_or_path") or "")
        return cls(folder, base, changes, f"lora-{digest[:12]}")

    def placed(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, LowRank]:
        """The changes by the names of a model's own modules.

        Args:
            shapes: outputs and inputs of the modules that can be changed, by name.

        Raises:
            ValueError: for changes of modules that the model has not, or of another shape.
        """
        own = {_within_text(module): module for module in shapes}
        found = dict[str, LowRank]()
        for name, change in self.changes.items():
            module = name if name in shapes else own.get(_within_text(name))
            if module is None and name.endswith("lm_head"):
                raise ValueError(
                    f"the adapter in {self.folder} changes lm_head, which this model does not keep"
                    " apart from its embedding; merge the adapter into the model"
                )
            if module is None:
                raise self._of_another_model(f"{name}, of which this model has no such matrix")
            if change.shape != tuple(shapes[module]):
                sizes = [" x ".join(map(str, each)) for each in (change.shape, shapes[module])]
                raise self._of_another_model(f"{name} as {sizes[0]}, and here it is {sizes[1]}")
            found[module] = change
        return found

    def _of_another_model(self, reason: str) -> ValueError:
        base = f" ({self.base})" if self.base else ""
        return ValueError(
            f"the adapter in {self.folder} is for another model: it changes {reason}; name the"
            f" model that it was trained for{base}"
        )

    def over(
        self, tensor: Callable[[str], Any], config: ModelConfiguration
    ) -> Callable[[str], Any]:
        """Give a model's tensors by name, as ``describe`` asks for them, with the changes.

        Args:
            tensor: gives those without.

        Raises:
            ValueError: as ``placed``.
        """
        changes = self._of(config)

        def changed(name: str) -> Any:
            module, _, kind = name.rpartition(".")
            found, change = tensor(name), changes.get(module) if kind == "weight" else None
            if change is None or found is None:
                return found
            change = change.ordered(*orders(module, config))
            adapted = Adapted(found, change.down, change.up)
            return adapted.floats() if name.endswith(SMALL_OF_STATES) else adapted

        return changed

    def touches(self, config: ModelConfiguration) -> Collection[str]:
        """Names of a model's modules that are changed; raises as ``placed``."""
        return self._of(config).keys()

    def _of(self, config: ModelConfiguration) -> dict[str, LowRank]:
        """The changes by the names of a configuration's modules, of which files have some apart."""
        found = dict[str, LowRank]()
        for name, change in self.changes.items():
            apart = parts_of(name, config)
            fits = sum(map(len, apart.values())) == len(change.up)
            parts: Mapping[str, Order] = apart if fits else {name: None}
            found |= {part: change.ordered(rows, None) for part, rows in parts.items()}
        return replace(self, changes=found).placed(changeable(config))


def changeable(config: ModelConfiguration) -> dict[str, tuple[int, ...]]:
    """Shapes of the modules whose matrices are products with rows, by name.

    These are all but embeddings, experts and what chooses experts.
    """
    found = {name: shape for name, shape in matrix_shapes(config).items() if len(shape) == 2}
    for name, shape in tensor_shapes(config).items():
        if name.endswith(SMALL_OF_STATES) and len(shape) == 2:
            found[name] = shape
    return {name.removesuffix(".weight"): shape for name, shape in found.items()}


def parts_of(module: str, config: ModelConfiguration) -> dict[str, Int[np.ndarray, " rows"]]:
    """The modules that a configuration has in the place of one of Transformers' which joins them,
    and the rows of each; none for others.
    """
    at, _, name = module.rpartition(".")
    if not getattr(config, APART, False):
        return {}
    if name == "input_linear":
        gate, up = np.arange(2 * config.inner_size).reshape(2, -1)
        return {f"{at}.gate_proj": gate, f"{at}.up_proj": up}
    return state_parts(module, config)


def adapter_folder(name: str) -> Path:
    """Find the folder of an adapter, and refuse one that could not be read; reads no numbers.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: as ``LoraAdapter.read``.
    """
    folder = expanded(name)
    if not folder.exists() and is_hub_id(name):
        folder = hub.files_of(name, [ADAPTER, WEIGHTS])
    missing = [each for each in (ADAPTER, WEIGHTS) if not (folder / each).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{name} is no LoRA adapter: there is no {missing[0]}; name the folder that"
            " save_pretrained of PEFT wrote, or its Hugging Face id"
        )
    _require_plain(folder, _settings_in(folder))
    strange = [each for each in read_header(folder / WEIGHTS) if not TENSOR.fullmatch(each)]
    if strange:
        raise _unsupported(folder, f"has {strange[0]}")
    return folder


SCALING = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
"""Settings that say how much is added."""


def _settings_in(folder: Path) -> dict[str, Any]:
    try:
        return read_settings(folder / ADAPTER)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder / ADAPTER} cannot be read ({error}); fetch the adapter again"
        ) from None


def _require_plain(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse kinds of adapters that are more than products."""
    if (kind := settings.get("peft_type")) != "LORA":
        raise _unsupported(folder, f"is of the kind {kind}, not LORA")
    for name in MORE:
        if settings.get(name):
            raise _unsupported(folder, f"has {name}")
    if (bias := settings.get("bias", "none")) != "none":
        raise _unsupported(folder, f"has biases ({bias})")
    if (start := settings.get("init_lora_weights")) not in PLAIN_STARTS:
        raise _unsupported(folder, f"changes the model's own weights too ({start})")


def _unsupported(folder: Path, reason: str) -> ValueError:
    return ValueError(
        f"the adapter in {folder} {reason}, which draftwood does not add to weights; {MERGE}"
    )


def _change(
    folder: Path, settings: Mapping[str, Any], module: str, pair: Mapping[str, np.ndarray]
) -> LowRank:
    """The change of a module, scaled as PEFT does."""
    try:
        rank = int(_of_pattern(settings, "rank_pattern", "r", module))
        alpha = float(_of_pattern(settings, "alpha_pattern", "lora_alpha", module))
        scale = alpha / (rank**0.5 if settings.get("use_rslora") else rank)
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, re.error, KeyError) as error:
        raise ValueError(
            f"{folder / ADAPTER} does not tell the rank and lora_alpha of {module} ({error});"
            " fetch the adapter again"
        ) from None
    down, up = (pair.get(side, np.empty(0)) for side in "AB")
    if down.ndim != 2 or up.ndim != 2 or (len(down), up.shape[1]) != (rank, rank):
        raise ValueError(
            f"the adapter in {folder} has no two matrices of rank {rank} for {module}; fetch it"
            " again"
        )
    if not (np.isfinite(down).all() and np.isfinite(up).all()):
        raise ValueError(f"the adapter in {folder} has NaN or infinity in {module}; train it again")
    return LowRank(down, up * np.float32(scale))


def _of_pattern(settings: Mapping[str, Any], patterns: str, usual: str, module: str) -> Any:
    """The value of a module: that of the first pattern that fits the end of its name."""
    for pattern, value in (settings.get(patterns) or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return settings[usual]


def _within_text(module: str) -> str:
    """A module's name without what differs between classes of one model."""
    before = next((each for each in TEXT_PARTS if module.startswith(each)), "")
    return module.removeprefix(before)
