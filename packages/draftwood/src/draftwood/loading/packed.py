"""Matrices in the library's layout on disk: packed once, mapped by every later load.

Loading a folder of them neither reads nor makes the original weights, and processes that run the
same model share its memory. The layout is the same on every CPU.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from draftwood.loading import mxfp4
from draftwood.loading.folders import REST, check_folder
from draftwood.loading.gguf_blocks import files_of, is_blocks_folder
from draftwood.loading.kept_matrices import (
    MATRICES,
    PLACES,
    keep,
    keep_within,
    limit,
    place_of,
    write_places,
)
from draftwood.loading.native_folders import (
    CONFIG,
    GENERATION,
    NativeFolder,
    generation_of,
    settings_of,
)
from draftwood.models.configuration import (
    ModelConfiguration,
    UnknownConfigurationError,
    end_tokens_of,
)
from draftwood.models.decoder import Projection
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.native import NativeModel
from draftwood.models.shapes import Shape, matrix_shapes, tensor_shapes
from draftwood.native.formats import CacheType, Products
from draftwood.native.matrix import ALIGNMENT, FROM_FLOATS, LAYOUT, Matrix, aligned
from draftwood.storage.atomic import MANIFEST
from draftwood.storage.memory import require_memory
from draftwood.storage.safetensors import map_arrays, map_file, write_arrays
from draftwood.storage.weights import SETTINGS, WEIGHTS, save_settings, settings_or_none, state_of
from draftwood.tokenizer import AnyTokenizer

# raised whenever a folder is written differently, so that those of earlier versions are made again
WRITING = 3


@dataclass(frozen=True)
class KeptMatrix:
    """Location of a packed matrix in the file, with its format.

    Attributes:
        format: llama.cpp's name.
        encoding: of the rows that it is multiplied with.
        factor: of its scales.
        weights, scales: bytes before them.
    """

    format: str
    outputs: int
    inputs: int
    encoding: int
    factor: float
    weights: int
    scales: int


@dataclass(frozen=True)
class Packing:
    """Result of examining a model for packing.

    Attributes:
        why_not: why the native path does not run the model; None if it does.
        shapes: outputs and inputs of its matrices, for each of the formats that those have which
            are stored in blocks; None for the others.
    """

    why_not: str | None
    shapes: dict[str | None, list[tuple[int, int]]]

    def size(self, products: Products) -> int:
        """Upper bound on the bytes of the packed matrices."""
        return sum(
            sum(Matrix.sizes(format or FROM_FLOATS[products], *shape))
            for format, shapes in self.shapes.items()
            for shape in shapes
        )


def packing(folder: Path) -> Packing:
    """Examine whether and how the model in a folder can be packed; reads no weights."""
    try:
        settings = settings_of(folder)
        config = ModelConfiguration(settings.told)
    except UnknownConfigurationError as error:
        return Packing(str(error), {})
    format = mxfp4.FORMAT if settings.in_mxfp4 else None
    shapes: dict[str | None, list[tuple[int, int]]] = {None: []}
    for shape in matrix_shapes(config).values():
        kind = format if len(shape) == 3 else None
        count = shape[0] if len(shape) == 3 else 1
        shapes.setdefault(kind, []).extend([(shape[-2], shape[-1])] * count)
    if config.get("tie_word_embeddings"):
        shapes[None].append((config.get("vocab_size"), config.get("hidden_size")))
    return Packing(None, shapes)


def packed_folder(
    folder: Path,
    products: Products,
    load: Callable[[], tuple[NativeFolder, AnyTokenizer]],
    adapter: str = "",
) -> Path:
    """The packed matrices of the model in a folder, made by the first call.

    Args:
        folder: of the original weights; where one of its files changes, they are packed again.
        load: loads model and tokenizer when they are needed.
        adapter: mark of the one that was added to the weights; empty for none.

    Raises:
        ValueError: for a model that the native path does not run, and one that is written to
            meanwhile.
        NoRoomError: where they do not fit on the disk.
        OSError: where it refuses.
    """
    source = _made_from(folder, products)
    made_from = source | ({"adapter": adapter} if adapter else {})
    kept = place_of(folder, made_from)

    def write(partial: Path) -> None:
        if shutil.disk_usage(partial).free < packing(folder).size(products):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # before the work is done
        write_packed(*load(), products, made_from, partial)
        if _made_from(folder, products) != source:
            raise ValueError(
                f"{folder} was changed while it was packed; load it again once nothing writes to it"
                " any more"
            )

    keep(kept, folder, write, _is_whole)
    keep_within(limit(), kept)
    return kept


def _is_whole(kept: Path) -> bool:
    """True if a folder has all its files; one whose removal was interrupted has not."""
    files = (settings_or_none(kept / MANIFEST) or {}).get("files") or ()
    return MATRICES in files and all((kept / name).is_file() for name in files)


def write_packed(
    loaded: NativeFolder,
    tokenizer: AnyTokenizer,
    products: Products,
    made_from: dict[str, object],
    folder: Path,
) -> None:
    """Pack a model's matrices into a folder, with all else that running it takes."""
    matrices = dict[str, KeptMatrix]()
    nowhere = np.broadcast_to(aligned(1), 1 << 62)
    with (folder / MATRICES).open("wb") as file:

        def pack(place: str, part: Projection) -> Matrix:
            matrix = Matrix.pack(part.weight, None, products)
            structure = matrix.structure
            each = KeptMatrix(
                matrix.format,
                *matrix.shape,
                structure.encoding,
                structure.factor,
                *(_append(file, content) for content in matrix.memory),
            )
            matrices[place] = each
            return _matrix(nowhere, each, part)  # no memory of its own; it is never multiplied

        NativeModel(loaded.model, products, packer=pack)
    _write_rest(loaded, folder)
    tokenizer.save_pretrained(folder)
    write_places(folder, made_from, {place: asdict(each) for place, each in matrices.items()})


def _write_rest(loaded: NativeFolder, folder: Path) -> None:
    """Write settings, and the tensors that are not packed."""
    config = ModelConfiguration(loaded.told)
    names = tensor_shapes(config).keys() - matrix_shapes(config).keys()
    write_arrays(folder / REST, {name: loaded.tensors(name) for name in sorted(names)})
    settings = {CONFIG: loaded.told, GENERATION: loaded.generation}
    save_settings(folder, {name: each for name, each in settings.items() if each is not None})


class Unread:
    """A matrix of which the shape alone is known, in the place of one that is packed."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def __getitem__(self, chosen: Any) -> "Unread":
        if isinstance(chosen, int):
            return Unread(self.shape[1:])
        rows = range(self.shape[0])
        count = len(rows[chosen]) if isinstance(chosen, slice) else len(chosen)
        return Unread((count, *self.shape[1:]))


def open_packed(kept: Path, cache: CacheType | None = None) -> NativeModel:
    """The model whose matrices a folder keeps; they stay mapped from its file.

    Raises:
        ValueError: for a folder that is damaged.
        MemoryError: where the matrices do not fit into memory.
    """
    check_folder(kept)
    places = json.loads((kept / PLACES).read_text(encoding="utf-8"))
    matrices = {place: KeptMatrix(**each) for place, each in places["matrices"].items()}
    require_memory((kept / MATRICES).stat().st_size, str(kept))
    file = _mapped(kept)

    def take(place: str, part: Projection) -> Matrix:
        each = matrices.get(place)
        if each is None or (each.outputs, each.inputs) != tuple(part.weight.shape):
            raise ValueError(
                f"{kept} is damaged: it has not the matrix of {place}; delete that folder and load"
                " the model again"
            )
        return _matrix(file, each, part)

    products = places["made_from"]["products"]
    return NativeModel(_described(kept), products, packer=take, cache=cache)


def _described(kept: Path) -> DescribedModel:
    told, small = settings_of(kept).told, map_arrays(kept / REST)
    config = ModelConfiguration(told)
    packed = {name: Unread(shape) for name, shape in matrix_shapes(config).items()}
    decoder = describe(told, {**small, **packed}.get)
    ends = end_tokens_of(told, generation_of(kept))
    return DescribedModel(decoder, config, ends, told["dtype"], Cpu())


def _mapped(kept: Path) -> np.ndarray:
    try:
        return map_file(kept / MATRICES)
    except OSError as error:
        raise OSError(
            f"{kept / MATRICES} cannot be mapped into memory ({error.strerror or error}); set"
            " DRAFTWOOD_HOME to a folder on a local disk"
        ) from error


def _matrix(file: np.ndarray, each: KeptMatrix, part: Projection) -> Matrix:
    """A matrix that stays in its file."""
    sizes = Matrix.sizes(each.format, each.outputs, each.inputs)
    begins = (each.weights, each.scales)
    memory = [file[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    return Matrix(
        each.format, each.outputs, each.inputs, part.bias, each.encoding, memory, each.factor
    )


def _append(file: BinaryIO, content: np.ndarray) -> int:
    """Write at the next multiple of a cache line; return that offset."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    begin = file.tell()
    file.write(content)  # type: ignore[arg-type]
    return begin


def _made_from(folder: Path, products: Products) -> dict[str, object]:
    """Everything that packed matrices depend on."""
    found = {path for pattern in (*WEIGHTS, *SETTINGS) for path in folder.glob(pattern)}
    files = sorted(path for path in found if path.is_file())
    states = {path.relative_to(folder).as_posix(): state_of(path) for path in files}
    parts = [str(path) for path in files_of(folder)] if is_blocks_folder(folder) else []
    states |= {part: state_of(Path(part)) for part in parts}
    return {
        **({"parts": parts} if parts else {}),
        "folder": str(folder.resolve()),
        "files": states,
        "products": products,
        "layout": LAYOUT,
        "writing": WRITING,
    }
