"""Models whose matrices stay in their GGUF file.

The rest is read once and kept in a small folder: configuration, tokenizer, norms and biases, and
the offset of each matrix in the file. Loading maps the file and hands its blocks to the native
path, which never makes floats of them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from draftwood.arrays import as_array
from draftwood.loading.gguf_files import (
    FLOATS,
    Layout,
    NotInBlocksError,
    opened,
    parts_of,
    quantisation_of,
    read_tokenizer,
    readable,
    stored_folder,
)
from draftwood.loading.gguf_metadata import FACTORS, read_metadata
from draftwood.loading.kept_decoder import keep, read_kept
from draftwood.models.decoder_model import DescribedModel
from draftwood.native.matrix import Blocks, Matrix, block_formats, kept_as
from draftwood.pytorch.loading import skeleton
from draftwood.pytorch.models.reading import why_other_shape
from draftwood.storage.atomic import Facts, is_intact, publish
from draftwood.storage.memory import require_memory
from draftwood.storage.progress import progress, quiet_transformers

if TYPE_CHECKING:
    from gguf import ReaderTensor

PLACES = "blocks.json"
ORDER = "order of "  # prefix of the names of tensors that hold rows
# raised whenever a file is read differently, so that folders of earlier versions are made again
READING = 1


@dataclass(frozen=True)
class StoredMatrix:
    """Location of a matrix in its GGUF file.

    Attributes:
        module: of the Transformers model, or one of the matrices of experts, all of them below each
            other, as ``model.layers.0.mlp.experts.gate``.
        format: llama.cpp's name, such as Q4_K.
        part: number of the file.
        offset: bytes before it.
        rows, row_bytes: of blocks.
        inputs: of the matrix.
        order: name of the tensor with the row of each output; None where they are the same.
    """

    module: str
    format: str
    part: int
    offset: int
    rows: int
    row_bytes: int
    inputs: int
    order: str | None


def blocks_folder(path: Path) -> Path:
    """The folder that describes the GGUF file at `path`, made by the first call.

    Raises:
        NotInBlocksError: for a model, or a type of blocks, that the native path does not run.
        ValueError: for a file that cannot be read.
        FileNotFoundError: without all parts of a split file.
    """
    path = path.resolve()
    folder = stored_folder(path, f"-blocks{READING}")
    if folder.is_dir():
        return folder
    return publish(folder, str(path), lambda partial: describe(path, partial))


def is_blocks_folder(folder: Path) -> bool:
    """True if the folder describes a GGUF file."""
    return (folder / PLACES).is_file()


def describe(path: Path, folder: Path) -> Facts:
    """Write into `folder` all that a model needs besides the matrices of its file.

    Returns what the folder's manifest says of the weights.
    """
    from gguf import dequantize
    from transformers import AutoConfig

    from draftwood.loading.gguf_settings import configuration

    parts = parts_of(path)
    with progress(f"reading {path.name} (once)"), quiet_transformers(), readable(path):
        readers = opened(parts)
        metadata = read_metadata(readers)
        config = AutoConfig.for_model(**configuration(metadata))
        model = skeleton.skeleton(config)
        _require_native(model, (each for reader in readers for each in reader.tensors))
        matrices, small = list[StoredMatrix](), dict[str, torch.Tensor]()
        layout, shapes = Layout(metadata.architecture, model), skeleton.shapes_of(model)
        for part, tensor in (
            (part, each) for part, reader in enumerate(readers) for each in reader.tensors
        ):
            if tensor.name in FACTORS:
                continue
            _require_shape(shapes, layout, tensor)
            if len(tensor.shape) == 3 and (name := layout.name_of(tensor.name)) in shapes:
                matrices.append(_stored(name.removesuffix(".weight"), tensor, part, False))
                continue
            if len(tensor.shape) == 2 and not layout.is_part(tensor.name):
                module, order = _ordered(layout, model, tensor)
                if module is not None:
                    matrices.append(_stored(module, tensor, part, order is not None))
                    if order is not None:
                        small[ORDER + module] = order
                    continue
            name, values = layout.place(tensor.name, dequantize(tensor.data, tensor.tensor_type))
            if name is not None:
                small[name] = torch.from_numpy(np.array(values, dtype=np.float32))
        for name, values in layout.joined.items():
            skeleton.require_shape(name, tuple(values.shape), shapes[name])
        small |= layout.joined
        tokenizer = read_tokenizer(parts[0], readers[0], config.model_type)
        skeleton.require_all(model, {*small, *(f"{each.module}.weight" for each in matrices)})
    skeleton.save(model, tokenizer, small, folder)
    # a file within the folder may move with it
    told = [part.name if part.parent == folder else str(part) for part in parts]
    places = {
        "files": told,
        "states": {str(part): _state(part) for part in parts if part.parent != folder},
        "matrices": [asdict(each) for each in matrices],
    }
    (folder / PLACES).write_text(json.dumps(places, indent=1) + "\n", encoding="utf-8")
    # the digest of gigabytes is taken when it is asked for
    return {"quantisation": quantisation_of(readers), "weights": None}


def matrix_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the matrices of a folder's file, by the names of their modules."""
    return {each.module: (each.rows, each.inputs) for each in _read_places(folder)[1]}


def files_of(folder: Path) -> list[Path]:
    """The parts of the file that a folder describes."""
    return _read_places(folder)[0]


def open_blocks(folder: Path, products: str = "int8") -> DescribedModel:
    """Open the model that a folder describes.

    Its weights are blocks: the native path alone runs it, with these products.

    Raises:
        ValueError: for a file that was cut short or changed since it was described, and for
            matrices of other shapes than the configuration asks for.
        FileNotFoundError: for a file that is gone.
        OSError: for one that cannot be mapped into memory.
        MemoryError: where the matrices do not fit into memory.
    """
    paths, matrices = _read_places(folder)
    files = [_mapped(path) for path in paths]
    for each in matrices:
        end = each.offset + each.rows * each.row_bytes
        if end > len(files[each.part]):
            raise ValueError(
                f"{paths[each.part]} was cut short since it was first read: the matrix of"
                f" {each.module} goes to byte {end} of {len(files[each.part])}; fetch it again"
            )
    require_unchanged(folder)
    sizes = [
        Matrix.sizes(kept_as(each.format, products), each.rows, each.inputs) for each in matrices
    ]
    require_memory(sum(map(sum, sizes)), str(paths[0]))
    kept = read_kept(folder, files)
    if kept is not None:
        return kept
    small = skeleton.small_tensors(folder)
    orders = {name: small.pop(name) for name in [*small] if name.startswith(ORDER)}
    found = dict[str, Blocks]()
    for each in matrices:
        end = each.offset + each.rows * each.row_bytes
        stored = files[each.part][each.offset : end]
        order = None if each.order is None else as_array(orders[each.order]).astype(np.int64)
        shape = (each.rows, each.row_bytes)
        found[each.module] = Blocks(each.format, stored.reshape(shape), each.inputs, order)
    model = DescribedModel.of(skeleton.open_skeleton(folder, small, found))
    keep(model, folder, files)
    return model


def require_unchanged(folder: Path) -> None:
    """Raise ValueError if a file was written to since its folder was made.

    Call it before and after matrices are read from the file.
    """
    for name, state in _places(folder).get("states", {}).items():
        if _state(Path(name)) != state:
            raise ValueError(
                f"{name} was changed since it was first read; load it again by its own name, once"
                " nothing writes to it any more"
            )


def _state(file: Path) -> list[int]:
    """Size and modification time."""
    found = file.stat()
    return [found.st_size, found.st_mtime_ns]


def _read_places(folder: Path) -> tuple[list[Path], list[StoredMatrix]]:
    """The files that a folder describes, and the matrices in them."""
    places = _places(folder)
    try:
        files = [folder / name for name in places["files"]]  # an absolute name stays what it is
        return files, [StoredMatrix(**entry) for entry in places["matrices"]]
    except (KeyError, TypeError) as error:
        raise ValueError(_damaged(folder, error)) from None


def _places(folder: Path) -> dict[str, Any]:
    """Read a folder's description of its file."""
    try:
        places = json.loads((folder / PLACES).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_damaged(folder, error)) from None
    if not isinstance(places, dict) or not is_intact(folder, PLACES):
        raise ValueError(_damaged(folder, "it was changed"))
    return places


def _damaged(folder: Path, reason: object) -> str:
    return f"{folder / PLACES} cannot be read ({reason}); delete that folder and load again"


def _mapped(file: Path) -> np.ndarray:
    try:
        if not file.stat().st_size:
            return np.empty(0, np.uint8)  # nothing to map
        return np.memmap(file, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} is gone, and its matrices were never copied; put it back or name another model"
        ) from None
    except OSError as error:
        raise OSError(
            f"{file} cannot be mapped into memory ({error.strerror or error}); copy it to a local"
            " disk"
        ) from error


def _ordered(
    layout: Layout, model: Any, tensor: "ReaderTensor"
) -> tuple[str | None, torch.Tensor | None]:
    """The linear layer that a matrix belongs to, and the file's row of each of its outputs.

    What Transformers does to the values of a tensor is done to the numbers of its rows. No layer
    where it belongs to something else, no rows where they are in order.
    """
    rows = int(tensor.shape[1])
    numbers = np.arange(rows, dtype=np.float32)[:, None].repeat(2, axis=1)
    name, values = layout.place(tensor.name, numbers)
    module = None if name is None else skeleton.module_of(model, name)
    if module is None:
        return None, None
    if values.shape != (rows, 2) or not np.array_equal(np.sort(values, axis=0), numbers):
        raise NotInBlocksError(f"its tensor {tensor.name} is not used as it is stored")
    order = torch.from_numpy(values[:, 0].astype(np.int32))
    return module, None if torch.equal(order, torch.arange(rows, dtype=torch.int32)) else order


def _stored(module: str, tensor: "ReaderTensor", part: int, is_ordered: bool) -> StoredMatrix:
    inputs, rows = int(tensor.shape[0]), prod(int(size) for size in tensor.shape[1:])
    return StoredMatrix(
        module,
        tensor.tensor_type.name,
        part,
        int(tensor.data_offset),
        rows,
        int(tensor.n_bytes) // rows,
        inputs,
        ORDER + module if is_ordered else None,
    )


def _require_native(model: Any, tensors: Iterable["ReaderTensor"]) -> None:
    """Raise NotInBlocksError unless the native path runs this model with these matrices."""
    reason = why_other_shape(model)
    if reason is not None:
        raise NotInBlocksError(f"the native path does not run it: {reason}")
    readable_formats = {*block_formats(), *(name for name in FLOATS if name != "F64")}
    formats = {each.tensor_type.name for each in tensors if len(each.shape) > 1}
    if strange := sorted(formats - readable_formats):
        raise NotInBlocksError(
            f"its matrices are stored as {', '.join(strange)}; used as they are"
            f" {', '.join(sorted(readable_formats))}"
        )


def _require_shape(
    shapes: Mapping[str, skeleton.Shape], layout: Layout, tensor: "ReaderTensor"
) -> None:
    """Raise ValueError for a tensor of another shape than the model's."""
    name = layout.name_of(tensor.name)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if name is not None and name in shapes:
        skeleton.require_shape(tensor.name, shape, shapes[name])
