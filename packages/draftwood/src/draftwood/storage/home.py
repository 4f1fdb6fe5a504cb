"""The folder where draftwood keeps what it makes."""

import os
from pathlib import Path


def home() -> Path:
    """The folder where draftwood keeps models.

    It is `$DRAFTWOOD_HOME`, or `~/.cache/draftwood` when that is not set.

    Raises:
        OSError: where that begins with the home of a user who has none.
    """
    name = os.environ.get("DRAFTWOOD_HOME") or "~/.cache/draftwood"
    folder = os.path.expanduser(name)
    if folder.startswith("~"):
        raise OSError(
            f"there is no home folder for the ~ of {name}; set DRAFTWOOD_HOME to a folder that this"
            " user may write to"
        )
    return Path(folder).absolute()


def expanded(name: "str | os.PathLike[str]") -> Path:
    """A path, whose ~ at the beginning becomes the home it means; of nobody's it stays."""
    return Path(os.path.expanduser(name))


def absolute(name: str) -> str:
    """A name, or the whole path of what is there under it, which holds in other folders too."""
    path = expanded(name)
    return str(path.resolve()) if path.exists() else name
