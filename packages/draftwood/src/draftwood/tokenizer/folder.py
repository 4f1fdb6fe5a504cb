"""Read the tokenizer of a model folder."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from draftwood.storage.memory import give_back_memory
from draftwood.storage.weights import read_settings
from draftwood.tokenizer.protocol import AnyTokenizer
from draftwood.tokenizer.tokenizer import (
    NAMES,
    SETTINGS,
    TEMPLATE,
    TEMPLATES,
    UNKNOWN_SPLIT,
    WHOLE,
    Tokenizer,
)

SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
"""Files of old folders, whose settings do not tell of added tokens."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""Ways to find an added token, and to decode it."""


def open_tokenizer(folder: str | Path) -> AnyTokenizer:
    """Read the tokenizer of a model folder: its tokenizer.json, settings, and chat templates.

    Transformers reads folders without a tokenizer.json. Warns of a GGUF file's tokenizer that may
    split texts otherwise than its model's.

    Raises:
        ValueError: for files that cannot be understood.
        OSError: for files that cannot be read.
        ModuleNotFoundError: for a folder that needs Transformers where that is not installed.
    """
    folder = Path(folder)
    if not (folder / WHOLE).is_file():
        return _in_transformers(folder)
    with _understood(folder):
        # a path would be refused where the locale cannot write it
        backend = tokenizers.Tokenizer.from_buffer((folder / WHOLE).read_bytes())
        give_back_memory()  # of 260,000 tokens 190 MB
        settings = _settings(folder)
        if _is_llamas(folder, settings):
            _mend_blanks(backend, settings)
        named, extra = _special(settings)
        backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        special = {*map(str, named.values()), *map(str, extra)}
        told = _told(settings, folder, backend.get_added_tokens_decoder(), special)
        _add(backend, told, named.values(), extra)
        template = _templates(folder) or settings.get("chat_template")
        if isinstance(template, list):
            template = {each["name"]: each["template"] for each in template}
        texts = {name: str(token) for name, token in named.items()}
    if UNKNOWN_SPLIT in settings:
        from draftwood.tokenizer.gguf_splits import warn_of_split

        warn_of_split(str(settings[UNKNOWN_SPLIT]))
    return Tokenizer(backend, texts, map(str, extra), template, settings)


def _in_transformers(folder: Path) -> AnyTokenizer:
    from draftwood.optional import backend

    return backend(f"a tokenizer without {WHOLE}, as in {folder},").tokenizer(folder)


@contextmanager
def _understood(folder: Path) -> Iterator[None]:
    """Turn any error about a folder's files into a ValueError of one line that names it."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:  # the package's own errors have no type
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"the tokenizer in {folder} cannot be read ({reason}); fetch it again"
        ) from error


def _settings(folder: Path) -> dict[str, Any]:
    """Settings of a tokenizer; an old folder keeps some of them in a file of their own."""
    settings = _json(folder / SETTINGS)
    if "added_tokens_decoder" not in settings:
        settings |= _json(folder / SPECIAL)
    return settings


def _json(path: Path) -> dict[str, Any]:
    return read_settings(path) if path.is_file() else {}


def _is_llamas(folder: Path, settings: Mapping[str, Any]) -> bool:
    """True if Transformers' class for Llama's tokenizers reads the folder."""
    name = str(settings.get("tokenizer_class")).removesuffix("Fast")
    return name == "LlamaTokenizer" and _json(folder / "config.json").get("model_type") == "llama"


def _mend_blanks(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Do as that class does: it takes the vocabulary alone from files without bytes.

    Files put a blank behind each special token, where SentencePiece has none.
    """
    if "ByteLevel" in str(backend.pre_tokenizer):
        return
    from draftwood.tokenizer.pieces import set_blanks

    backend.normalizer = None  # type: ignore[assignment]
    has_blank = settings.get("add_prefix_space") in (None, True)
    always = "always" if settings.get("legacy") else "first"
    set_blanks(backend, always if has_blank else "never")


def _special(
    settings: Mapping[str, Any],
) -> tuple[dict[str, str | AddedToken], list[str | AddedToken]]:
    """Special tokens with names, the usual ones first, and those without."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    found = {key: each for key, each in settings.items() if key.endswith("_token")}
    if isinstance(extra, Mapping):
        found, extra = {**found, **extra}, []
    named = {key: _token(each) for key, each in found.items() if isinstance(each, str | dict)}
    usual = [f"{name}_token" for name in NAMES if f"{name}_token" in named]
    return {name: named[name] for name in [*usual, *named]}, [_token(each) for each in extra]


def _token(told: str | Mapping[str, Any]) -> str | AddedToken:
    if isinstance(told, str):
        return told
    flags = {key: bool(told[key]) for key in FLAGS if key in told}
    return AddedToken(told["content"], **flags)


def _told(
    settings: Mapping[str, Any], folder: Path, here: dict[int, AddedToken], special: set[str]
) -> list[AddedToken]:
    """Added tokens as the settings tell of them, or old folders, in the order of their ids.

    Args:
        here: those of the tokenizer.json.
        special: tokens with names, and further special ones.
    """
    if "added_tokens_decoder" in settings:
        told = {
            int(number): _token(each) for number, each in settings["added_tokens_decoder"].items()
        }
    else:
        told = {
            number: AddedToken(token, normalized=token not in special, special=token in special)
            for token, number in _json(folder / ADDED).items()
        } | here
    return [each for _, each in sorted(told.items()) if isinstance(each, AddedToken)]


def _add(
    backend: tokenizers.Tokenizer,
    told: Iterable[AddedToken],
    named: Collection[str | AddedToken],
    extra: Iterable[str | AddedToken],
) -> None:
    """Add the tokens that the tokenizer lacks or has otherwise; those with names are special."""
    here = {each.content: repr(each) for each in backend.get_added_tokens_decoder().values()}
    names = {str(each) for each in named}
    wanted = {each.content: each for each in told}
    for each in (*named, *extra):
        if str(each) not in here and str(each) not in wanted:
            wanted[str(each)] = AddedToken(each, special=True) if isinstance(each, str) else each
    for each in wanted.values():
        each.special = each.special or each.content in names
    backend.add_tokens([each for each in wanted.values() if here.get(each.content) != repr(each)])


def _templates(folder: Path) -> str | dict[str, str] | None:
    """Chat templates that have files of their own; they take the place of those in settings."""
    files = {path.stem: path for path in sorted((folder / TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files = {"default": folder / TEMPLATE, **files}
    found = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return found.get("default") if [*found] == ["default"] else found or None
