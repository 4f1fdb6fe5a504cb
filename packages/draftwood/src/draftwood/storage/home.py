"""The folder where draftwood keeps what it makes."""

import os
from pathlib import Path


def home() -> Path:
    """The folder where draftwood keeps models.

    It is `$DRAFTWOOD_HOME`, or `~/.cache/draftwood` when that is not set.
    """
    return expanded(os.environ.get("DRAFTWOOD_HOME") or "~/.cache/draftwood").absolute()


def expanded(name: "str | os.PathLike[str]") -> Path:
    """A path, whose ~ at the beginning becomes the home it means; of nobody's it stays."""
    return Path(os.path.expanduser(name))


def absolute(name: str) -> str:
    """A name, or the whole path of what is there under it, which holds in other folders too."""
    path = expanded(name)
    return str(path.resolve()) if path.exists() else name
