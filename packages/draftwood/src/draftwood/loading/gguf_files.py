"""GGUF files: converted once into an ordinary model folder, which then loads quickly."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.arrays import FloatType
from draftwood.loading.names import suffix
from draftwood.models.configuration import ModelConfiguration, why_not_native
from draftwood.optional import backend
from draftwood.storage.atomic import MANIFEST, Facts, publish, sha256
from draftwood.storage.home import home
from draftwood.storage.memory import is_lack_of_memory, require_memory
from draftwood.storage.progress import progress
from draftwood.storage.safetensors import write_arrays
from draftwood.storage.weights import save_settings, settings_or_none, state_of

if TYPE_CHECKING:
    from draftwood.loading.gguf_reader import Content
    from draftwood.tokenizer import Tokenizer

# raised whenever a file is read differently, so that folders of earlier versions are made again
READING = 7
TOKENS = 2
"""Raised whenever tokens of files are read differently.

Folders of earlier versions are made again under the same name, by which packed matrices are found.
"""
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")


class NotInBlocksError(ValueError):
    """A file whose matrices cannot be used as they are; the message says why."""


def stored_dtype(floats: str | None) -> FloatType:
    """Type in which a folder must store the weights for a model of these floats.

    float32 holds whatever a GGUF file says.

    Args:
        floats: a name; None takes what is usual.
    """
    return "bfloat16" if floats in (None, "bfloat16") else "float32"


def gguf_folder(path: Path, dtype: FloatType = "bfloat16") -> Path:
    """The model folder made from the GGUF file at `path`.

    The first call converts, later ones find the result. Raises ValueError when the file is not a
    GGUF file that can be read, FileNotFoundError when it is one of several parts and the others are
    not beside it, and MemoryError when its numbers do not fit into memory.
    """
    return made_once(path, suffix(dtype), lambda partial: convert_gguf(path, partial, dtype))


def is_converted(path: Path, dtype: FloatType) -> bool:
    """True if ``gguf_folder`` finds the folder."""
    return stored_folder(parts_of(path), suffix(dtype)).is_dir()


def made_once(
    path: Path,
    ending: str,
    make: Callable[[Path], Facts],
    is_made_of_it: Callable[[Path], bool] | None = None,
) -> Path:
    """The folder that is made of the GGUF file at `path`, and made again where the file has another
    state or its tokens were read otherwise; one that cannot be written is taken where its content
    is the file's: home may have been moved with the file.

    Args:
        ending: of the folder's name.
        make: fills an empty folder.
        is_made_of_it: tells whether a folder has the content of the file; by default its digest
            does.

    Raises:
        ValueError: for what is no GGUF file.
        FileNotFoundError: without all parts of a split file.
        OSError: where the disk refuses.
    """
    parts = parts_of(path)
    folder = stored_folder(parts, ending)
    state = repr([TOKENS, *(state_of(part) for part in parts)])

    def is_current(found: Path) -> bool:
        told = settings_or_none(found / MANIFEST)  # whoever reads it names what is damaged
        return found.is_dir() and (told is None or told.get("state") == state)

    def has_its_content(found: Path) -> bool:
        if is_made_of_it is not None:
            return is_made_of_it(found)
        return (settings_or_none(found / MANIFEST) or {}).get("weights") == digest(parts)

    is_fixed = folder.is_dir() and not os.access(folder.parent, os.W_OK)
    if is_current(folder) or (is_fixed and has_its_content(folder)):
        return folder
    for part in parts:
        check_gguf(part)
    return publish(
        folder, str(path.absolute()), lambda new: {**make(new), "state": state}, is_current
    )


def stored_folder(parts: list[Path], ending: str) -> Path:
    """Folder for what is made of a file in these parts.

    Its name hashes their paths, sizes and times of change instead of their content: reading
    gigabytes at every start would cost more than the conversion saves, and a renamed file only
    converts again.
    """
    identity = [*map(str, parts), *(state_of(part)[:2] for part in parts), READING]
    mark = hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
    return home() / "models" / f"gguf-{parts[0].stem}-{mark}{ending}"


def parts_of(path: Path) -> list[Path]:
    """All parts of a split file in their order, found beside the one that is named; links that lead
    to them are followed then: Hugging Face's cache keeps a file under its digest.

    The file alone if it is whole.

    Raises FileNotFoundError, naming the first part that is not there.
    """
    split = [parts for each in (path.absolute(), path.resolve()) if (parts := named_with(each))]
    if not split:
        return [path.resolve()]
    for parts in split:
        if all(part.is_file() for part in parts):
            return [part.resolve() for part in parts]
    missing = next(part.name for part in split[0] if not part.is_file())
    cure = "put all parts into one folder, or join them with llama.cpp's `llama-gguf-split --merge`"
    raise FileNotFoundError(
        f"{path} is one of {len(split[0])} parts of a model, and {missing} is not beside it; {cure}"
    )


def named_with(path: Path) -> list[Path]:
    """The parts that the name of one of them tells of; none for another name."""
    if (found := PART.fullmatch(path.name)) is None:
        return []
    names = (f"{found[1]}-{number:05}-of-{found[3]}.gguf" for number in range(1, 1 + int(found[3])))
    return [path.with_name(name) for name in names]


def check_gguf(path: Path) -> None:
    """Raise ValueError unless the file begins like a GGUF file of a known version."""
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or head[:4] != b"GGUF":
        raise ValueError(
            f"{path} is not a GGUF file (it begins with {head[:4]!r}, not b'GGUF'); fetch the file"
            " again"
        )
    version = int.from_bytes(head[4:], "little")
    if int.from_bytes(head[4:], "big") in (2, 3):
        raise ValueError(
            f"{path} is a big-endian GGUF file; write it again with 'gguf-convert-endian {path}"
            " little', which the package gguf brings"
        )
    if version not in (2, 3):
        raise ValueError(
            f"{path} is a GGUF file of version {version}, readable are 2 and 3; convert it with"
            " llama.cpp"
        )


def convert_gguf(path: Path, folder: Path, dtype: FloatType = "bfloat16") -> Facts:
    """Write the model and the tokenizer of a GGUF file into `folder`.

    The weights become safetensors in `dtype`, the tokenizer becomes tokenizer.json. The chat
    template is kept. Returns what the folder's manifest says of the weights: how they were
    quantised, and the file's SHA-256. Raises ValueError, naming the file, when it is damaged or
    says something that is not understood, and MemoryError when its numbers do not fit into memory.
    """
    from draftwood.loading.gguf_reader import read_content

    parts = parts_of(path)
    with progress(f"converting {path.name} to {dtype} (once)"):
        with readable(path):
            content = read_content(parts)
            require_memory(content.numbers * (4 if dtype == "float32" else 2), str(path))
            write = _native_writer(content, dtype) or _general_writer(content, dtype)
            tokenizer = tokenizer_of(content, parts)
        write(folder)
        tokenizer.save(folder)
        return {"quantisation": content.quantisation, "weights": digest(parts)}


def tokenizer_of(content: "Content", parts: list[Path]) -> "Tokenizer":
    """The tokenizer of a file in these parts.

    Raises:
        UnknownArchitectureError: for a kind that is not known.
        ValueError: for one that is damaged.
    """
    from draftwood.loading.gguf_metadata import UnknownArchitectureError
    from draftwood.tokenizer.gguf import UnknownKindError, tokenizer_of_gguf

    try:
        return tokenizer_of_gguf(parts[0], content.architecture, content.config["vocab_size"])
    except UnknownKindError as error:
        raise UnknownArchitectureError(str(error)) from error


def _native_writer(content: "Content", dtype: FloatType) -> Callable[[Path], None] | None:
    """Read the weights of a native family; gives what writes them, and None for another one."""
    from draftwood.loading.gguf_floats import float_tensors

    if why_not_native(content.config) is not None:
        return None
    tensors = float_tensors(content, dtype)

    def write(folder: Path) -> None:
        write_settings(content.config, folder, dtype)
        write_arrays(folder / "model.safetensors", tensors)

    return write


def require_general(content: "Content") -> None:
    """Raise ValueError for a file that only the native path knows how to read."""
    from draftwood.loading.gguf_settings import ARCHITECTURES

    reason = why_not_native(content.config)
    if ARCHITECTURES[content.architecture].is_native_alone:
        raise ValueError(f"files of {content.architecture} are read natively alone, and {reason}")


def _general_writer(content: "Content", dtype: FloatType) -> Callable[[Path], None]:
    require_general(content)
    needed = f"a GGUF file of the architecture {content.architecture}"
    return backend(needed).gguf_saver(content, dtype)


def write_settings(config: Mapping[str, Any], folder: Path, dtype: FloatType = "float32") -> None:
    """Write the configuration of a model, and the tokens that begin and end its texts; the class of
    a native one is known.
    """
    from draftwood.loading.gguf_settings import TOKENS

    classes = config.get("architectures") or [ModelConfiguration(config).architecture]
    known = {"architectures": classes, "dtype": dtype}
    tokens = {name: config[name] for name in TOKENS.values() if config.get(name) is not None}
    files = {
        "config.json": {**config, **known},
        "generation_config.json": {"_from_model_config": True, **tokens},
    }
    save_settings(folder, files)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any error of a parser about damaged bytes into a ValueError that names the file.

    Missing packages and memory keep their own errors.
    """
    try:
        yield
    except (NotInBlocksError, ModuleNotFoundError):
        raise
    except Exception as error:  # a parser fed with damaged bytes fails in every way there is
        if is_lack_of_memory(error):
            raise
        from draftwood.loading.gguf_metadata import ORIGINAL, UnknownArchitectureError

        # Transformers calls garbled metadata "not a valid JSON file", an OSError; there is no JSON
        # here.
        garbled = isinstance(error, OSError)
        reason = (
            "its metadata is garbled"
            if garbled or isinstance(error, UnicodeDecodeError)
            else " ".join(str(error).split())[:300] or repr(error)
        )
        cure = f"fetch the file again, or {ORIGINAL}"
        if isinstance(error, UnknownArchitectureError):
            cure = error.cure
        if found := UNKNOWN_TYPE.search(reason):
            reason = f"a tensor is of type {found[1]}, which the gguf package does not know"
            cure = "upgrade that package, " + cure
        raise ValueError(f"{path} cannot be read as a GGUF model ({reason}); {cure}") from None


def digest(parts: list[Path]) -> str:
    """SHA-256 of a file; of several, the SHA-256 of their digests."""
    digests = [sha256(part) for part in parts]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )
