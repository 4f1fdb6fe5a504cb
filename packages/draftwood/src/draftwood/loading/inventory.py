"""Models and what was made of them on this machine: where, how large, and out of the way again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from draftwood.loading.gguf_files import named_with
from draftwood.loading.names import BUILTIN_NAMES, is_hub_id, shipped_models, unknown
from draftwood.loading.packages import builtins
from draftwood.storage.atomic import MANIFEST, remove_folder
from draftwood.storage.home import expanded, home
from draftwood.storage.weights import settings_or_none

HUB = "Hugging Face"
REGISTRIES = {"on the hub": HUB, "PyPI": "PyPI", "npm": "npm"}
"""Registries, by words of a model's origin."""
KINDS = {
    "models": "models",
    "packed": "packed weights",
    "kernels": "compiled kernels",
    "curves": "measured costs",
    "priors": "measured tables",
    "exits": "measured exits",
    "downloads": "unfinished downloads",
    "chats": "saved chats",
}
"""Contents of the folders in ``home()``; others are told by their names."""


@dataclass(frozen=True)
class NamedModel:
    """A model that commands find by its name.

    Attributes:
        registries: from where it is fetched, in this order.
        size: bytes on this machine; where it is not here, of the file that would be fetched.
        licence: None where its file here does not say.
        folders: that hold it, none where it is not here.
    """

    name: str
    registries: tuple[str, ...]
    size: int
    origin: str
    licence: str | None
    folders: tuple[Path, ...]


def named_models() -> list[NamedModel]:
    """The built-in models, those of packages, and those of the hub in Hugging Face's cache."""
    return [*map(_builtin, BUILTIN_NAMES), *_of_packages(), *_of_the_hub()]


def _of_packages() -> Iterator[NamedModel]:
    """Models that come with installed packages."""
    for name, folder in sorted(shipped_models().items()):
        told = settings_or_none(folder / MANIFEST) or {}
        origin = str(told.get("source", "an installed package"))
        yield NamedModel(name, (), bytes_in(folder), origin, None, (folder,))


def _builtin(name: str) -> NamedModel:
    known = builtins()[name]
    there = tuple(each for each in known.folders if each.is_dir())
    size = sum(map(bytes_in, there)) or known.size
    places = tuple(place for mark, place in REGISTRIES.items() if mark in known.source)
    return NamedModel(name, places, size, known.source, known.licence, there)


def hub_cache() -> Path:
    """The folder of Hugging Face's cache, there or not."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _of_the_hub() -> Iterator[NamedModel]:
    for folder in sorted(hub_cache().glob("models--*--*")):
        if any(folder.glob("snapshots/*/config.json")):
            name = folder.name.removeprefix("models--").replace("--", "/", 1)
            origin = f"{name} on the hub"
            yield NamedModel(name, (HUB,), bytes_in(folder), origin, None, (folder,))


def bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder; links count nothing."""
    return sum(map(_bytes_of, folder.rglob("*")))


def _bytes_of(path: Path) -> int:
    try:
        return 0 if path.is_symlink() or not path.is_file() else path.stat().st_size
    except OSError:  # it has just gone
        return 0


def disk_used() -> dict[str, tuple[Path, int]]:
    """Folders and bytes, by the kind of what they hold."""
    folders = sorted(each for each in home().glob("*") if each.is_dir())
    found = {KINDS.get(each.name, each.name): (each, bytes_in(each)) for each in folders}
    if hub_cache().is_dir():
        found["Hugging Face's cache"] = hub_cache(), bytes_in(hub_cache())
    return found


def removable(name: str) -> list[Path]:
    """Folders of a built-in model, or those made of a GGUF file of one's own, which may be gone;
    and of weights that were packed of them.

    Raises:
        ValueError: for what is not draftwood's to remove, and a model that is not here.
    """
    from draftwood.loading.kept_matrices import packed_from

    if name not in BUILTIN_NAMES:
        path = expanded(name)
        if made := _made_of(path):
            return made + packed_from(made)
        if path.exists():
            raise ValueError(
                f"{name} is a path of your own, of which nothing was made; remove it as any other"
            )
        if is_hub_id(name):
            raise ValueError(
                f"{name} lies in Hugging Face's cache, which other programs use too; remove it"
                f" with: hf cache rm model/{name}"
            )
        if name in shipped_models():
            raise ValueError(f"{name} comes with a package; uninstall that to remove it")
        raise unknown(name)
    there = [each for each in builtins()[name].folders if each.is_dir()]
    if not there:
        raise ValueError(f"{name} is not on this machine; 'draftwood models' tells what is")
    return there + packed_from(there)


def _made_of(path: Path) -> list[Path]:
    """Folders into which a GGUF file was converted, in this state of it or an earlier one.

    Of a split file any part may have named it then, and may be gone.
    """
    made = sorted((home() / "models").glob("gguf-*"))
    beside = named_with(path.absolute()) + named_with(path.resolve())
    names = {each.resolve() for each in (path, *beside)}
    return [each for each in made if _source(each) in names]


def _source(folder: Path) -> Path | None:
    told = (settings_or_none(folder / MANIFEST) or {}).get("source")
    return Path(told).resolve() if isinstance(told, str) else None


def remove(folders: list[Path]) -> int:
    """Remove folders, each at once for whoever looks for it; returns their bytes.

    Raises:
        OSError: where the disk refuses.
    """
    size = sum(map(bytes_in, folders))
    for folder in folders:
        remove_folder(folder)
    return size
