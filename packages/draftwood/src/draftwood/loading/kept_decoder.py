"""Keep on disk what was read from a model of Transformers.

The classes of Transformers take longer to import than a small model to load, and the decoders of
GGUF files need them only once. Whatever a decoder is read from, and the code that reads it, is part
of a key; where that has changed, the decoder is read again.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from draftwood.arrays import as_array
from draftwood.models import decoder, families
from draftwood.models.decoder_model import CONFIG, DescribedModel
from draftwood.models.model import Cpu
from draftwood.native.matrix import Blocks
from draftwood.storage.atomic import write_file

KEPT = "decoder.kept"
"""Not called after its format, since it holds nothing that the folder does not say anyway."""
PARTS = {
    kind.__name__: kind
    for module in (decoder, families)
    for kind in vars(module).values()
    if isinstance(kind, type) and is_dataclass(kind)
}


def read_kept(folder: Path, files: Sequence[np.ndarray]) -> DescribedModel | None:
    """Read the model that ``keep`` was given; None if there is none, or an outdated one.

    Args:
        files: mapped, in which the blocks lie.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / KEPT, "np") as kept:
            told = kept.metadata() or {}
            if told.get("key") != _key(folder):
                return None
            tensors = {name: kept.get_tensor(name) for name in kept.offset_keys()}
    except (OSError, SafetensorError):
        return None
    record = json.loads(told["model"])
    blocks = [
        Blocks(
            each["format"],
            files[each["part"]][each["begin"] : each["begin"] + each["rows"] * each["row_bytes"]]
            .reshape(each["rows"], each["row_bytes"]),
            each["inputs"],
            None if each["order"] is None else tensors[each["order"]],
        )
        for each in record["blocks"]
    ]  # fmt: skip

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(made(each) for each in value)
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "blocks" in value:
            return blocks[value["blocks"]]
        return PARTS[value["part"]](**{name: made(each) for name, each in value["of"].items()})

    return DescribedModel(
        decoder=made(record["decoder"]),
        config=SimpleNamespace(**record["config"]),
        end_tokens=frozenset(record["end_tokens"]),
        dtype=record["dtype"],
        device=Cpu(),
    )


def keep(model: DescribedModel, folder: Path, files: Sequence[np.ndarray]) -> None:
    """Write a model whose matrices are blocks of these files, if the disk allows it."""
    from safetensors.numpy import save_file

    arrays, blocks = dict[int, tuple[str, Any]](), dict[int, tuple[int, Blocks]]()

    def named(numbers: Any) -> str:
        return arrays.setdefault(id(numbers), (str(len(arrays)), numbers))[0]

    def told(value: Any) -> Any:
        if isinstance(as_array(value), np.ndarray):
            return {"tensor": named(value)}
        if isinstance(value, Blocks):
            return {"blocks": blocks.setdefault(id(value), (len(blocks), value))[0]}
        if isinstance(value, tuple):
            return [told(each) for each in value]
        if is_dataclass(value):
            of = {each.name: told(getattr(value, each.name)) for each in fields(value)}
            return {"part": type(value).__name__, "of": of}
        return value

    def placed(each: Blocks) -> dict[str, Any]:
        part, begin = _place(each.stored, files)
        rows, row_bytes = each.stored.shape
        order = None if each.order is None else named(each.order)
        place = {"part": part, "begin": begin, "rows": rows, "row_bytes": row_bytes}
        return {"format": each.format, "inputs": each.inputs, "order": order, **place}

    record = {
        "decoder": told(model.decoder),
        "blocks": [placed(each) for _, each in blocks.values()],
        "config": {name: getattr(model.config, name, None) for name in CONFIG},
        "end_tokens": sorted(model.end_tokens),
        "dtype": model.dtype,
    }
    apart = {name: np.array(as_array(numbers)) for name, numbers in arrays.values()}
    facts = {"key": _key(folder), "model": json.dumps(record)}
    with suppress(OSError):  # the next load reads it again
        write_file(folder / KEPT, lambda partial: save_file(apart, partial, facts))


def _place(stored: np.ndarray, files: Sequence[np.ndarray]) -> tuple[int, int]:
    """Number of the file that holds an array, and the offset in bytes."""
    for part, file in enumerate(files):
        begin = stored.ctypes.data - file.ctypes.data
        if begin >= 0 and begin + stored.nbytes <= file.nbytes:
            return part, begin
    raise ValueError("blocks lie in no file")


def _key(folder: Path) -> str:
    """Hash of everything that a decoder depends on: its folder, and the code that reads it."""
    here = Path(__file__).parent
    code = [path for room in (here, here.parent / "models") for path in sorted(room.glob("*.py"))]
    states = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".safetensors")
    ]
    told = [version("transformers"), version("torch"), states]
    digest = hashlib.sha256(json.dumps(told).encode())
    for path in code:
        digest.update(path.read_bytes())
    return digest.hexdigest()
