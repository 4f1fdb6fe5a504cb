"""Places of a GGUF file's matrices in a model of Transformers, found without reading numbers."""

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import gguf
import numpy as np
from transformers import AutoConfig

from draftwood.models.shapes import other_shape, require_none
from draftwood_torch.loading.gguf_models import TransformersLayout
from draftwood_torch.loading.packed_models import is_turned, linear_modules, named
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.loading.skeleton import skeleton

if TYPE_CHECKING:
    from draftwood.loading.gguf_reader import Content

BLOCK = re.compile(r"^blk\.\d+\.")


class ModelParts(NamedTuple):
    """A file as the model of Transformers has it.

    Attributes:
        settings: the content of its config.json.
        matrices: the module, the number of the part and the stored tensor of each matrix that stays
            in blocks.
        small: all other tensors in float32, by the model's names.
    """

    settings: dict[str, Any]
    matrices: list[tuple[str, int, Any]]
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
        for part, tensor in content.tensors:
            module = places.of(tensor)
            if module is not None:
                parts.matrices.append((module, part, tensor))
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
    """Names of matrices in a model; that they lie there as in the file is found by laying out the
    numbers of their rows and columns in the place of weights.

    Attributes:
        head: name of the output head's weight.
    """

    def __init__(self, architecture: str, model: Any) -> None:
        self.layout = TransformersLayout(architecture, model)
        self.modules = linear_modules(model)
        embedding = model.get_input_embeddings()
        self.modules[named(model, embedding)] = embedding
        self.head = f"{named(model, model.get_output_embeddings())}.weight"
        self._same: dict[tuple[str, tuple[int, ...]], bool] = {}

    def of(self, tensor: Any) -> str | None:
        """The module of a stored tensor; None for what is no matrix of a linear layer, or lies
        there otherwise.
        """
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if len(shape) != 2:
            return None
        rows = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
        columns = np.broadcast_to(np.arange(shape[1], dtype=np.float32), shape)
        name, laid_out = self.placed(tensor.name, rows)
        module, _, kind = (name or "").rpartition(".")
        if kind != "weight" or module not in self.modules:
            return None
        wanted = tuple(self.modules[module].weight.shape)
        if laid_out.shape != wanted:
            message = other_shape(f"{module}.weight", laid_out.shape, wanted)
            raise ValueError(f"its tensor {message}")
        key = BLOCK.sub("", tensor.name), shape
        if key not in self._same:
            found = laid_out, self.placed(tensor.name, columns)[1]
            turned = (each.T if is_turned(self.modules[module]) else each for each in found)
            self._same[key] = all(map(np.array_equal, turned, (rows, columns)))
        return module if self._same[key] else None

    def placed(self, name: str, values: np.ndarray) -> tuple[str | None, np.ndarray]:
        """The model's name of a tensor and its values there, also where the layout keeps them."""
        joined = self.layout.joined
        before = set(joined)
        found, values = self.layout.place(name, values)
        for other in joined.keys() - before:
            found, values = other, joined.pop(other).numpy()
        return found, values
