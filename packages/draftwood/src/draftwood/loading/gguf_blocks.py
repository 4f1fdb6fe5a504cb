"""Models whose matrices stay in their GGUF file.

The rest is read once and kept in a small folder: configuration, tokenizer, norms and biases, and
the offset of each matrix in the file. Loading maps the file and hands its blocks to the native
path, which never makes floats of them; what it lays out is kept (``kept_matrices``). Models of
other families get them in the place of their linear layers.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftwood.loading.folders import REST
from draftwood.loading.gguf_files import (
    NotInBlocksError,
    made_once,
    parts_of,
    readable,
    require_general,
    tokenizer_of,
    write_settings,
)
from draftwood.loading.names import MTP
from draftwood.models.configuration import ModelConfiguration, end_tokens_of, why_not_native
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.shapes import INPUTS, small_modules
from draftwood.native.formats import Products
from draftwood.native.matrix import FROM_FLOATS, Blocks, Matrix, block_formats, kept_as
from draftwood.optional import backend
from draftwood.storage.atomic import Facts, is_intact
from draftwood.storage.memory import require_memory
from draftwood.storage.progress import progress
from draftwood.storage.safetensors import map_file, read_header, write_arrays
from draftwood.storage.weights import read_settings, state_of

if TYPE_CHECKING:
    from gguf import ReaderTensor

    from draftwood.arrays import FloatType
    from draftwood.loading.adapters import LoraAdapter
    from draftwood.loading.gguf_reader import Content
    from draftwood.loading.native_folders import NativeFolder

ARRAYS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""Formats of floats, and arrays that hold them."""
PLACES = "blocks.json"
ORDER = "order of "  # prefix of the names of tensors that hold rows
# raised whenever a file is read differently, so that folders of earlier versions are made again
READING = 7


@dataclass(frozen=True)
class StoredMatrix:
    """Location of a matrix in its GGUF file.

    Attributes:
        module: by Transformers' name, or one of the matrices of experts, all of them below each
            other, as ``model.layers.0.mlp.experts.gate``.
        format: llama.cpp's name, such as Q4_K.
        part: number of the file.
        offset: bytes before it.
        rows, row_bytes: of blocks.
        inputs: of the matrix.
        order: name of the tensor with the row of each output; None where they are the same.
        run: rows of an expert, where as many of another matrix lie between those of two experts.
    """

    module: str
    format: str
    part: int
    offset: int
    rows: int
    row_bytes: int
    inputs: int
    order: str | None
    run: int | None = None

    @property
    def end(self) -> int:
        """Bytes of the file up to the end of this matrix."""
        between = 0 if self.run is None else self.rows - self.run
        return self.offset + (self.rows + between) * self.row_bytes

    def blocks(self, file: np.ndarray, orders: Mapping[str, np.ndarray]) -> "Blocks | list[Blocks]":
        """The matrix in its mapped file, or that of each expert."""
        stored = file[self.offset : self.end].reshape(-1, self.row_bytes)
        if (run := self.run) is not None:
            begins = range(0, len(stored), 2 * run)
            return [Blocks(self.format, stored[at : at + run], self.inputs) for at in begins]
        order = None if self.order is None else orders[self.order].astype(np.int64)
        return Blocks(self.format, stored, self.inputs, order)


def blocks_folder(path: Path) -> Path:
    """The folder that describes the GGUF file at `path`, made by the first call.

    Raises:
        NotInBlocksError: for a type of blocks that the library does not multiply.
        ValueError: for a file that cannot be read.
        FileNotFoundError: without all parts of a split file.
    """
    return made_once(
        path,
        f"-blocks{READING}",
        lambda new: write_description(path, new),
        lambda found: _changed_file(found) is None,
    )


def is_blocks_folder(folder: Path) -> bool:
    """True if the folder describes a GGUF file."""
    return (folder / PLACES).is_file()


def write_description(path: Path, folder: Path) -> Facts:
    """Write into ``folder`` all that a model needs besides the matrices of its file.

    Returns what the folder's manifest says of the weights.
    """
    from draftwood.loading.gguf_reader import FLOATS, read_content

    parts, formats = parts_of(path), {*block_formats(), *FLOATS} - {"F64"}
    with progress(f"reading {path.name} (once)"), readable(path):
        content = read_content(parts)
        _require_blocks(content, formats)
        settings, matrices, small = _told_apart(content)
        tokenizer = tokenizer_of(content, parts)
    write_settings(settings, folder)
    tokenizer.save(folder)
    write_arrays(folder / REST, small)
    # a file within the folder may move with it
    inside = folder.resolve()
    told = [part.name if part.parent == inside else str(part) for part in parts]
    places = {
        "files": told,
        "states": {str(part): state_of(part) for part in parts if part.parent != inside},
        "matrices": [asdict(each) for each in matrices],
    }
    (folder / PLACES).write_text(json.dumps(places, indent=1) + "\n", encoding="utf-8")
    # the digest of gigabytes is taken when it is asked for
    return {"quantisation": content.quantisation, "weights": None}


class _Parts(NamedTuple):
    """Settings, matrices, which stay in the file, and the values of all other tensors.

    Among these are the orders of rows of matrices.
    """

    settings: dict[str, Any]
    matrices: list[StoredMatrix]
    small: dict[str, np.ndarray]


def _told_apart(content: "Content") -> _Parts:
    """The parts of a file."""
    if why_not_native(content.config) is not None:
        return _of_transformers(content)
    from draftwood.loading.gguf_names import halves
    from draftwood.loading.gguf_reader import placed

    layout, family = content.layout, content.native.family
    others = small_modules(family)
    parts = _Parts(content.config | content.as_stored, [], {})
    for each in placed(content):
        is_weight = each.name.endswith(".weight") and not each.name.endswith(others)
        if not is_weight or len(each.stored.shape) < 2:
            parts.small[each.name] = each.floats(layout)
            continue
        module, heads = each.name.removesuffix(".weight"), layout.heads_of(each.stored.name)
        rows = int(each.stored.shape[1])
        order = np.arange(rows) if heads is None else halves(rows, heads)
        is_ordered = not np.array_equal(order, np.arange(rows))
        if is_ordered:
            parts.small[ORDER + module] = order.astype(np.int32)
        parts.matrices.append(_stored(module, each.stored, each.part, is_ordered, each.half))
    return parts


def _of_transformers(content: "Content") -> _Parts:
    """The parts of a file of a model that the native path does not run."""
    require_general(content)
    needed = f"a GGUF file of the architecture {content.architecture}"
    found = backend(needed).gguf_parts(content)
    matrices = [_stored(module, tensor, part, False) for module, part, tensor in found.matrices]
    return _Parts(found.settings, matrices, dict(found.small))


def why_general(folder: Path) -> str | None:
    """Say why the native path does not run the file that a folder describes; None if it does."""
    return why_not_native(read_settings(folder / "config.json"))


def matrix_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the matrices of a folder's file, by the names of their modules."""
    return {each.module: (each.rows, each.inputs) for each in _read_places(folder)[1]}


def names_in(folder: Path) -> set[str]:
    """Names of the tensors of the model that a folder describes."""
    small = read_header(folder / REST)
    return {*small, *(f"{each.module}.weight" for each in _read_places(folder)[1])}


def has_mtp(folder: Path) -> bool:
    """True if the file that a folder describes has a layer for multi-token prediction."""
    return any(name.startswith(MTP) for name in read_header(folder / REST))


def own_tensors(folder: Path, products: Products) -> "dict[str, np.ndarray | Blocks]":
    """Map the tensors of the model that a folder describes, as its file has them; raises as
    ``open_blocks``.
    """
    return _tensors(folder, lambda each: kept_as(each.format, products))


def files_of(folder: Path) -> list[Path]:
    """The parts of the file that a folder describes."""
    return _read_places(folder)[0]


def own_products(folder: Path) -> Products:
    """The products of a folder's file where no type is told: of integers for blocks of codes, else
    of the type that most of its numbers have; float16 is multiplied in float32.
    """
    sizes = Counter[str]()
    for each in _read_places(folder)[1]:
        sizes[each.format] += each.rows * each.inputs
    if sizes.keys() - ARRAYS.keys():
        return "int8"
    return "bfloat16" if sizes["BF16"] > sizes["F32"] + sizes["F16"] else "float32"


def open_blocks(
    folder: Path, products: Products = "int8", adapter: "LoraAdapter | None" = None
) -> DescribedModel:
    """Open the model that a folder describes.

    Its weights are blocks: the native path alone runs it, with these products.

    Args:
        adapter: added to its weights; matrices that it changes are packed for the products.

    Raises:
        ValueError: for a file that was cut short or changed since it was described, and for
            matrices of other shapes than the configuration asks for.
        FileNotFoundError: for a file that is gone.
        OSError: for one that cannot be mapped into memory.
        MemoryError: where the matrices do not fit into memory.
    """
    config = ModelConfiguration(read_settings(folder / "config.json"))
    changed = () if adapter is None else adapter.touches(config)

    def format_of(each: StoredMatrix) -> str:
        is_packed = each.module in changed
        return FROM_FLOATS[products] if is_packed else kept_as(each.format, products)

    tensor = _tensors(folder, format_of).get
    return _described(folder, tensor if adapter is None else adapter.over(tensor, config))


def open_general(
    folder: Path, products: Products, is_packed: bool, adapter: "LoraAdapter | None" = None
) -> Any:
    """The model of Transformers that a folder describes, its linear layers packed.

    Args:
        is_packed: whether matrices are floats that are packed for the products; else they stay
            what they are.

    Raises:
        ValueError: as ``open_blocks``, as are the others.
    """

    def format_of(each: StoredMatrix) -> str:
        return FROM_FLOATS[products] if is_packed else kept_as(each.format, products)

    tensors: dict[str, Any] = _tensors(folder, format_of)
    if is_packed:
        tensors = {name: _numbers(each) for name, each in tensors.items()}
    changes_of = None if adapter is None else adapter.placed
    model = backend(f"the model in {folder}").read_blocks(folder, tensors, products, changes_of)
    require_unchanged(folder)
    return model


def open_floats(
    folder: Path, products: Products, adapter: "LoraAdapter | None" = None
) -> "NativeFolder":
    """Open the model of a file of floats, which is packed for products of integers as one of a
    folder of such floats is; the arguments and what it raises are those of ``open_blocks``.
    """
    from draftwood.loading.native_folders import NativeFolder

    found = _tensors(folder, lambda _: FROM_FLOATS[products])
    tensors = {name: _numbers(each) for name, each in found.items()}
    own: FloatType = "bfloat16" if own_products(folder) == "bfloat16" else "float32"
    told = read_settings(folder / "config.json") | {"dtype": own}
    given = tensors.get
    if adapter is not None:
        given = adapter.over(given, ModelConfiguration(told))
    generation = read_settings(folder / "generation_config.json")
    return NativeFolder(told, generation, tensors.get, _described(folder, given, own))


def _numbers(stored: Any) -> Any:
    """Floats in arrays; those of a file whose rows stay in their order are not read yet."""
    if isinstance(stored, list):
        return [_numbers(each) for each in stored]
    if not isinstance(stored, Blocks):
        return stored
    numbers = stored.stored.view(ARRAYS[stored.format])
    return numbers if stored.order is None else numbers[stored.order]


def _tensors(folder: Path, format_of: Callable[[StoredMatrix], str]) -> dict[str, Any]:
    """Map the tensors of the model that a folder describes: arrays, blocks, or those of each
    expert.

    Args:
        format_of: what a matrix is kept in.

    Raises:
        ValueError: as ``open_blocks``, as are the others.
    """
    paths, matrices = _read_places(folder)
    files = [_mapped(path) for path in paths]
    for each in matrices:
        if each.end > len(files[each.part]):
            raise ValueError(
                f"{paths[each.part]} was cut short since it was first read: the matrix of"
                f" {each.module} goes to byte {each.end} of {len(files[each.part])}; fetch it again"
            )
    require_unchanged(folder)
    copied = [each for each in matrices if not each.module.endswith(INPUTS)]
    sizes = [Matrix.sizes(format_of(each), each.rows, each.inputs) for each in copied]
    require_memory(sum(map(sum, sizes)), str(paths[0]))
    small = _small_tensors(folder)
    return small | {
        f"{each.module}.weight": each.blocks(files[each.part], small) for each in matrices
    }


def _small_tensors(folder: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(folder / REST)
    except SafetensorError as error:
        raise ValueError(
            f"{folder / REST} cannot be read ({error}); delete that folder and load again"
        ) from None


def _described(
    folder: Path, tensor: Callable[[str], Any], dtype: "FloatType" = "float32"
) -> DescribedModel:
    """The model of these tensors with the settings of a folder.

    Raises:
        ValueError: for tensors of other shapes than the configuration asks for, and missing ones.
    """
    names = ("config.json", "generation_config.json")
    told, generation = (read_settings(folder / name) for name in names)
    return DescribedModel(
        decoder=describe(told, tensor),
        config=ModelConfiguration(told),
        end_tokens=end_tokens_of(told, generation),
        dtype=dtype,
        device=Cpu(),
    )


def require_unchanged(folder: Path) -> None:
    """Raise ValueError if a file was written to since its folder was made.

    Call it before and after matrices are read from the file.
    """
    if (changed := _changed_file(folder)) is not None:
        raise ValueError(
            f"{changed} was changed since it was first read; load it again by its own name, once"
            " nothing writes to it any more"
        )


def _changed_file(folder: Path) -> str | None:
    """A file that is another one than its folder describes; None where none is.

    A file that was moved with its folder keeps its size and time of change, and is read again.

    Raises:
        ValueError: for a moved file, and a description, that cannot be read.
    """
    told = _places(folder).get("states", {})
    found = {name: state_of(Path(name)) for name in told}
    if found == told:
        return None
    other = [name for name, state in told.items() if found[name][:2] != state[:2]]
    return other[0] if other else _other_file(folder, repr(found))


@cache
def _other_file(folder: Path, states: str) -> str | None:
    """The first part of a file whose small tensors, or places of matrices, are others than those
    of its folder; None where they are the same.

    Args:
        states: of the parts; in each of them the file is read once.
    """
    from draftwood.loading.gguf_reader import read_content

    paths, described = _read_places(folder)
    with readable(paths[0]):
        _, matrices, small = _told_apart(read_content(paths))
    kept = _small_tensors(folder)
    is_same = matrices == described and small.keys() == kept.keys()
    same = (values.tobytes() == kept[name].tobytes() for name, values in small.items())
    return None if is_same and all(same) else str(paths[0])


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
        return map_file(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is gone; put it back or name another model") from None
    except OSError as error:
        raise OSError(
            f"{file} cannot be mapped into memory ({error.strerror or error}); copy it to a local"
            " disk"
        ) from error


def _stored(
    module: str, tensor: "ReaderTensor", part: int, is_ordered: bool, half: int | None = None
) -> StoredMatrix:
    """Locate a matrix, or one of two that take turns, expert by expert."""
    inputs, rows = int(tensor.shape[0]), prod(int(size) for size in tensor.shape[1:])
    row_bytes, run = int(tensor.n_bytes) // rows, None
    if half is not None:
        rows, run = rows // 2, int(tensor.shape[1]) // 2
    return StoredMatrix(
        module,
        tensor.tensor_type.name,
        part,
        int(tensor.data_offset) + (half or 0) * (run or 0) * row_bytes,
        *(rows, row_bytes, inputs, ORDER + module if is_ordered else None, run),
    )


def _require_blocks(content: "Content", formats: set[str]) -> None:
    """Raise NotInBlocksError unless the library multiplies this model's matrices as stored."""
    matrices = (each for _, each in content.tensors if len(each.shape) > 1)
    if strange := sorted({each.tensor_type.name for each in matrices} - formats):
        raise NotInBlocksError(
            f"its matrices are stored as {', '.join(strange)}; used as they are"
            f" {', '.join(sorted(formats))}"
        )
