"""Chats that users have saved, a file each under ``home()/chats``."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftwood.storage.atomic import for_its_owner, write_file
from draftwood.storage.home import absolute, home

NEWEST = "."
"""In the place of a name: the chat that was saved last."""
NAME = re.compile(r"[^\W_][\w.-]{0,79}")
ROLES = ("user", "assistant")

_KNOWN = dict[Path, bytes]()
"""Files as this process has read or written them."""


@dataclass(frozen=True)
class SavedChat:
    """A conversation on disk.

    Attributes:
        model: name of the model that answered, or the whole path of its folder or file.
        messages: with role and content; questions and answers take turns.
        system: what the model was told before them.

    Raises:
        ValueError: for anything else.
    """

    model: str
    messages: list[dict[str, str]] = field(default_factory=list)
    system: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.messages, list) or not all(map(_is_message, self.messages)):
            raise ValueError("a message has other fields than role and content")
        if not isinstance(self.model, str) or not isinstance(self.system, str | None):
            raise ValueError("the model or the system message is no text")
        if [each["role"] for each in self.messages] != [*ROLES] * (len(self.messages) // 2):
            raise ValueError("questions and answers do not take turns")

    def require_model(self, name: str, model: str) -> None:
        """Refuse to go on with another model.

        Args:
            name: of the chat.
            model: as the user names it.

        Raises:
            ValueError: naming the option that mends it.
        """
        if absolute(model) != self.model:
            raise ValueError(
                f"chat {name!r} was held with {self.model}, not with {model}; go on with --model"
                f" {self.model}"
            )


def _is_message(found: object) -> bool:
    return (
        isinstance(found, dict)
        and set(found) == {"role", "content"}
        and all(isinstance(each, str) for each in found.values())
    )


def path_of(name: str) -> Path:
    """File of a chat, there or not.

    Raises:
        ValueError: for a name that no chat can have.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"a chat's name has up to 80 letters, digits, dots, - and _, beginning with a letter or"
            f" digit, got {name!r:.90}"
        )
    return home() / "chats" / f"{name}.json"


def saved_names() -> list[str]:
    """Names of the chats, the newest first."""
    files = (home() / "chats").glob("*.json")
    known = [each for each in files if NAME.fullmatch(each.stem) and each.is_file()]
    return [each.stem for each in sorted(known, key=_age)]


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # it has just gone
        return 0.0


def read(name: str) -> tuple[str, SavedChat]:
    """The name of a chat, and the chat.

    Args:
        name: ``NEWEST`` for the one that was saved last.

    Raises:
        ValueError: where there is none of that name, and for a damaged file.
        OSError: for one that cannot be read.
    """
    known = saved_names()
    if name == NEWEST and not known:
        raise ValueError("no chat is saved yet; --save NAME saves one")
    name = known[0] if name == NEWEST else name
    path = path_of(name)
    if name not in known:
        there = f"there are {', '.join(known[:10])}" if known else "none is saved yet"
        raise ValueError(f"no chat is named {name!r}; {there}, and --save {name} begins it")
    _KNOWN[path] = path.read_bytes()
    try:
        return name, SavedChat(**_fields(json.loads(_KNOWN[path].decode())))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); mend or remove it") from None


def _fields(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping) or found.get("form") != 1:
        raise ValueError("it is no chat of this version")
    return {name: value for name, value in found.items() if name != "form"}


def require_new(name: str) -> None:
    """Raise ValueError for the name of a chat that is there already."""
    if path_of(name).exists():
        raise ValueError(
            f"there is a chat {name!r} already; --resume {name} goes on with it, or take another"
            " name"
        )


def write(name: str, chat: SavedChat) -> Path:
    """Save a chat, whole or not at all, for its owner's eyes; returns the file.

    Raises:
        ValueError: for a name that no chat can have, and for a chat that another process went on
            with.
        OSError: where the disk refuses, with the cure.
    """
    path = path_of(name)
    if path.is_file() and path.read_bytes() != _KNOWN.get(path):
        raise ValueError(
            f"another process went on with chat {name!r}, so this one is not saved; /save NAME"
            " keeps it under another name"
        )
    text = json.dumps({"form": 1, **asdict(chat)}, indent=1)
    write_file(path, for_its_owner(text))
    _KNOWN[path] = text.encode()
    return path
