"""Places of a GGUF file's matrices in a model of Transformers, found without reading numbers."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import gguf
import numpy as np
from jaxtyping import Int
from transformers import AutoConfig

from draftwood.models.configuration import FULL
from draftwood.models.shapes import other_shape, require_none
from draftwood_torch.loading.gguf_models import TransformersLayout
from draftwood_torch.loading.packed_models import is_turned, linear_modules, named
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.loading.skeleton import skeleton
from draftwood_torch.models.mtp_weights import IN_FILES

if TYPE_CHECKING:
    from draftwood.loading.gguf_reader import Content

BLOCK = re.compile(r"^blk\.\d+\.")


Order = tuple[Int[np.ndarray, " outputs"] | None, Int[np.ndarray, " inputs"] | None]
"""The stored row of each output and column of each input; None where they are the same."""


class ModelParts(NamedTuple):
    """A file as the model of Transformers has it.

    Attributes:
        settings: the content of its config.json.
        matrices: the module, the number of the part, the stored tensor and the order of outputs
            and inputs of each matrix that stays in blocks.
        small: all other tensors in float32, by the model's names.
    """

    settings: dict[str, Any]
    matrices: list[tuple[str, int, Any, Any, Any]]
    small: dict[str, np.ndarray]


def model_parts(content: "Content") -> ModelParts:
    """Tell the matrices of linear layers and of the embedding from all else.

    Raises:
        ValueError: for tensors that the model does not have, of other shapes, and missing ones.
    """
    with quiet_transformers():
        model = skeleton(AutoConfig.for_model(**content.config))
        places = MatrixPlaces(content.architecture, model)
        shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
        parts = ModelParts(model.config.to_dict(), [], {})
        parts.settings["architectures"] = [type(model).__name__]
        layer = MtpPlaces(places, parts, model.config.get_text_config())
        for part, tensor in content.tensors:
            if layer.take(part, tensor):
                continue
            module, order = places.of(tensor)
            if module is not None and order is not None:
                parts.matrices.append((module, part, tensor, *order))
                continue
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            name, values = places.placed(tensor.name, np.asarray(values, np.float32))
            if name is not None:
                if values.shape != shapes[name]:
                    raise ValueError(f"its tensor {other_shape(name, values.shape, shapes[name])}")
                parts.small[name] = np.array(values, np.float32)
    found = parts.small.keys() | {f"{module}.weight" for module, *_ in parts.matrices}
    tied = {places.head} if model.config.get_text_config().tie_word_embeddings else set()
    require_none([name for name in shapes if name not in found | tied])
    return parts


class MatrixPlaces:
    """Names and orders of matrices in a model, found by laying out the numbers of their rows and
    columns in the place of weights.

    Attributes:
        head: name of the output head's weight.
    """

    def __init__(self, architecture: str, model: Any) -> None:
        self.layout = TransformersLayout(architecture, model)
        self.modules = linear_modules(model)
        embedding = model.get_input_embeddings()
        self.modules[named(model, embedding)] = embedding
        self.head = f"{named(model, model.get_output_embeddings())}.weight"
        self._orders: dict[tuple[str, tuple[int, ...]], Order | None] = {}

    def of(self, tensor: Any) -> tuple[str | None, Order | None]:
        """The module of a stored tensor, and its order there; neither for what is no matrix of a
        linear layer.
        """
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if len(shape) != 2:
            return None, None
        rows = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
        columns = np.broadcast_to(np.arange(shape[1], dtype=np.float32), shape)
        name, laid_out = self.placed(tensor.name, rows)
        module, _, kind = (name or "").rpartition(".")
        if kind != "weight" or module not in self.modules:
            return None, None
        wanted = tuple(self.modules[module].weight.shape)
        if laid_out.shape != wanted:
            message = other_shape(f"{module}.weight", laid_out.shape, wanted)
            raise ValueError(f"its tensor {message}")
        key = BLOCK.sub("", tensor.name), shape
        if key not in self._orders:
            found = laid_out, self.placed(tensor.name, columns)[1]
            turned = (each.T if is_turned(self.modules[module]) else each for each in found)
            self._orders[key] = _order(*turned)
        return module, self._orders[key]

    def placed(self, name: str, values: np.ndarray) -> tuple[str | None, np.ndarray]:
        """The model's name of a tensor and its values there, also where the layout keeps them."""
        joined = self.layout.joined
        before = set(joined)
        found, values = self.layout.place(name, values)
        for other in joined.keys() - before:
            found, values = other, joined.pop(other).numpy()
        return found, values


NEXTN = {
    "nextn.eh_proj.weight": "eh_proj.weight",
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.shared_head_norm.weight": "post_norm.weight",
}
"""Tensors of a layer for multi-token prediction around its decoder layer, and their names in
Transformers' one.
"""


class Renamed(NamedTuple):
    """A stored tensor under another one's name."""

    name: str
    shape: Any


class MtpPlaces:
    """Places of the layer for multi-token prediction behind a file's last layer.

    It is laid out as the model's last layer of attention is. What has no place there is left out,
    and missed when the layer is asked for.

    Args:
        places: of the model.
        parts: that take its tensors.
        config: of the model's text.
    """

    def __init__(self, places: MatrixPlaces, parts: ModelParts, config: Any) -> None:
        self.places, self.parts = places, parts
        kinds = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
        self.behind = f"blk.{config.num_hidden_layers}."
        self.like = max((at for at, kind in enumerate(kinds) if kind == FULL), default=0)

    def take(self, part: int, tensor: Any) -> bool:
        """Take a tensor; False for one of another layer."""
        if not tensor.name.startswith(self.behind):
            return False
        rest = tensor.name.removeprefix(self.behind)
        own, is_around = NEXTN.get(rest), rest.startswith("nextn.")
        if own is not None or not is_around:  # embedding and output head are the model's
            with suppress(ValueError):
                self._place(part, tensor, own, rest)
        return True

    def _place(self, part: int, tensor: Any, own: str | None, rest: str) -> None:
        at = f"{IN_FILES}layers.0."
        if own == "eh_proj.weight":
            self.parts.matrices.append((f"{at}eh_proj", part, tensor, None, None))
            return
        name = f"blk.{self.like}.{rest if own is None else 'attn_norm.weight'}"
        module, order = self.places.of(Renamed(name, tensor.shape))
        if module is not None and order is not None:
            self.parts.matrices.append((f"{at}{self._in_block(module)}", part, tensor, *order))
            return
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        placed, values = self.places.placed(name, np.asarray(values, np.float32))
        if placed is not None:
            named = self._in_block(placed) if own is None else own
            self.parts.small[f"{at}{named}"] = np.array(values, np.float32)

    def _in_block(self, name: str) -> str:
        """Name in Transformers' layer of what is so called in the one like it."""
        return f"mtp_block.{name.partition(f'layers.{self.like}.')[2]}"


def _order(rows: np.ndarray, columns: np.ndarray) -> Order | None:
    """The order of a matrix whose rows and columns were laid out so; None where that is none."""
    outputs, inputs = rows[:, 0].astype(np.int64), columns[0].astype(np.int64)
    usual = np.arange(len(outputs)), np.arange(len(inputs))
    is_order = (rows == rows[:, :1]).all() and (columns == columns[:1]).all()
    is_whole = all(map(np.array_equal, map(np.sort, (outputs, inputs)), usual))
    if not (is_order and is_whole):
        return None
    return tuple(  # type: ignore[return-value]
        None if np.array_equal(order, own) else order
        for order, own in zip((outputs, inputs), usual, strict=True)
    )
