"""Folders of matrices in the library's layout, all of them under ``home()/packed``.

Those of a model's floats are ``packed``, and mapped; here are those of a GGUF file's blocks, which
are read into memory. All of them together stay below ``$DRAFTWOOD_PACKED_GB``; those that were not
used for longest are dropped by the next load.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.native.matrix import LAYOUT, Blocks, Matrix, fill
from draftwood.native.threads import threads
from draftwood.storage.atomic import Facts, publish, remove_folder
from draftwood.storage.home import home
from draftwood.storage.weights import settings_or_none, state_of

PLACES, MATRICES = "packed.json", "matrices.bin"
USUAL_GIGABYTES = 20.0
LEAST_BYTES = 32 << 20
"""Fewer are laid out as fast as they are read."""
MOST_PARTS, MOST_BYTES = 1000, 1 << 30
"""Parts and bytes of one read, within what systems take."""


class KeptBlocks:
    """Fills matrices with blocks that an earlier load laid out, or lays them out and keeps them.

    What was kept is read into the memory that the matrices have: a tenth of the work, and no page
    of the GGUF file is read. Make it before the file is mapped: what another program writes
    meanwhile is not kept then.

    Args:
        folder: that describes the GGUF file.
        files: its parts; where one changes, its blocks are laid out again.
        products: with which the matrices are multiplied.
        meanwhile: called beside it.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[Path],
        products: str,
        meanwhile: Callable[[], object],
    ) -> None:
        self.folder, self.files, self.products = folder, files, products
        self.meanwhile, self.states = meanwhile, self._states()

    def fill(self, matrices: Sequence[tuple[Matrix, Blocks]]) -> None:
        """Fill matrices with their blocks."""
        parts = [part for matrix, _ in matrices for part in matrix.memory]
        size = sum(part.nbytes for part in parts)
        if size < LEAST_BYTES or not hasattr(os, "preadv"):  # Windows has none
            fill(matrices, self.meanwhile)
        else:
            self._read_or_keep(matrices, parts, size)
        keep_within(limit())

    def _read_or_keep(
        self, matrices: Sequence[tuple[Matrix, Blocks]], parts: Sequence[np.ndarray], size: int
    ) -> None:
        made_from = self._made_from([blocks for _, blocks in matrices])
        kept = place_of(self.folder, made_from)
        if is_whole(kept, size) and self._read(kept / MATRICES, parts):
            _mark_used(kept)
        else:
            fill(matrices, self.meanwhile)
            self._keep(kept, parts, size, made_from)

    def _read(self, file: Path, parts: Sequence[np.ndarray]) -> bool:
        """Read memory part after part, by all threads; False where the disk refuses."""
        try:
            with file.open("rb") as opened, ThreadPoolExecutor(threads()) as pool:
                begun = [
                    (pool.submit(os.preadv, opened.fileno(), some, begin), size)
                    for begin, size, some in _runs([part.data for part in parts], threads())
                ]
                self.meanwhile()
                return all(read.result() == size for read, size in begun)
        except OSError:
            return False

    def _keep(
        self, kept: Path, parts: Sequence[np.ndarray], size: int, made_from: Mapping[str, object]
    ) -> None:
        """Write what was laid out, if there is room for it and nobody else is at it; the next load
        tries again else.
        """

        def write(partial: Path) -> None:
            with (partial / MATRICES).open("wb") as file:
                for part in parts:
                    file.write(part)  # type: ignore[arg-type]
            write_places(partial, made_from, {})

        with suppress(OSError):
            has_room = size <= min(limit(), shutil.disk_usage(self.folder).free // 4)
            if has_room and self._states() == self.states:
                keep(kept, self.folder, write, lambda found: is_whole(found, size), waits=False)

    def _states(self) -> dict[str, list[int]]:
        return {str(file.resolve()): state_of(file) for file in self.files}

    def _made_from(self, blocks: Sequence[Blocks]) -> dict[str, object]:
        """Everything that the bytes depend on."""
        return {
            "folder": str(self.folder.resolve()),
            "files": self.states,
            "products": self.products,
            "layout": LAYOUT,
            "blocks": [each.mark for each in blocks],
        }


def _runs(parts: Sequence[memoryview], count: int) -> list[tuple[int, int, list[memoryview]]]:
    """Parts that lie one behind the other in a file, in at least so many runs if they are as many:
    where each begins, its bytes, and its parts.
    """
    most = min(MOST_BYTES, -(-sum(part.nbytes for part in parts) // count))
    runs, begin = list[tuple[int, int, list[memoryview]]](), 0
    for part in parts:
        for at in range(0, part.nbytes, MOST_BYTES):
            piece = part[at : at + MOST_BYTES]
            if not runs or runs[-1][1] + piece.nbytes > most or len(runs[-1][2]) == MOST_PARTS:
                runs.append((begin, 0, []))
            first, size, some = runs[-1]
            runs[-1] = first, size + piece.nbytes, [*some, piece]
            begin += piece.nbytes
    return runs


def keep(
    kept: Path,
    source: Path,
    write: Callable[[Path], None],
    is_whole: Callable[[Path], bool],
    waits: bool = True,
) -> None:
    """Make a folder of matrices unless it is there, and drop others that are outdated.

    Args:
        source: folder of the model.
        write: fills an empty folder.
        is_whole: tells whether the folder is one; another is made again.
        waits: for another process that makes the folder.

    Raises:
        OSError: where the disk refuses, or another process is at it and this one does not wait.
    """

    def build(partial: Path) -> Facts:
        write(partial)
        return {"quantisation": None, "weights": None}

    if not is_whole(kept):
        publish(kept, str(source), build, is_whole, waits)
        _drop_outdated(kept)
    _mark_used(kept)


def _mark_used(kept: Path) -> None:
    """Let a folder be the last one that is dropped, where it is one's own."""
    with suppress(OSError):
        os.utime(kept)


def is_whole(kept: Path, size: int) -> bool:
    """True if a folder holds so many bytes of matrices."""
    try:
        return (kept / MATRICES).stat().st_size == size and (kept / PLACES).is_file()
    except OSError:
        return False


def place_of(folder: Path, made_from: Mapping[str, object]) -> Path:
    """The folder of matrices that are made of a model's folder, which need not be there."""
    mark = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]
    return home() / "packed" / f"{_name_of(folder)}-{made_from['products']}-{mark}"


def write_places(
    folder: Path, made_from: Mapping[str, object], matrices: Mapping[str, Any]
) -> None:
    """Write what matrices are made from, and where each of those that are mapped lies."""
    places = {"made_from": made_from, "matrices": matrices}
    (folder / PLACES).write_text(json.dumps(places, indent=1) + "\n", encoding="utf-8")


def limit() -> int:
    """Most bytes that all packed matrices together may take on disk.

    Raises:
        ValueError: where ``$DRAFTWOOD_PACKED_GB`` is no number, or below 0.
    """
    told = os.environ.get("DRAFTWOOD_PACKED_GB") or str(USUAL_GIGABYTES)
    try:
        if (gigabytes := float(told)) >= 0:
            return int(min(gigabytes, 1e9) * 1e9)
    except ValueError:
        pass
    raise ValueError(f"DRAFTWOOD_PACKED_GB is a number of gigabytes from 0 on, not {told!r}")


def _name_of(folder: Path) -> str:
    """Name of a folder's model; the cache of Hugging Face names folders after commits."""
    folder = folder.resolve()
    named = folder.parent.parent if folder.parent.name == "snapshots" else folder
    return named.name.removeprefix("models--")[:60]


def _drop_outdated(kept: Path) -> None:
    """Drop matrices packed before the folder, the GGUF file or the layout changed."""
    told = _same(kept)
    for other in _all_kept():
        if other != kept and _same(other) == told:
            _drop(other)


def packed_from(folders: Collection[Path]) -> list[Path]:
    """Folders of matrices that were packed from models in folders."""
    names = {str(each.resolve()) for each in folders}
    return [each for each in _all_kept() if _made_from(each).get("folder") in names]


def _same(kept: Path) -> tuple[object, ...]:
    """The files of a GGUF model or else the folder of floats, how they are multiplied, and their
    adapter.
    """
    told = _made_from(kept)
    source = [*told.get("files", ())] if "blocks" in told else told.get("folder")
    return told.get("parts", source), told.get("products"), told.get("adapter")


def _made_from(kept: Path) -> dict[str, Any]:
    """Everything that packed matrices depend on; empty where that cannot be read."""
    told = (settings_or_none(kept / PLACES) or {}).get("made_from")
    return told if isinstance(told, dict) else {}


def keep_within(size: int, used: Path | None = None) -> None:
    """Drop the least recently used folders until the rest fits ``size`` bytes, but never `used`."""
    found = list[tuple[float, int, Path]]()
    for kept in _all_kept():
        with suppress(OSError):  # another process may have dropped it
            bytes_of_files = sum(file.stat().st_size for file in kept.iterdir())
            found.append((kept.stat().st_mtime, bytes_of_files, kept))
    total = sum(each for _, each, _ in found)
    for _, each, kept in sorted(found):
        if total > size and kept != used:
            _drop(kept)
            total -= each


def _drop(kept: Path) -> None:
    """Remove a folder, unless another process is at it or the disk refuses."""
    with suppress(OSError):
        remove_folder(kept, waits=False)


def _all_kept() -> list[Path]:
    folder = home() / "packed"
    return [path for path in folder.glob("[!.]*") if path.is_dir()]
