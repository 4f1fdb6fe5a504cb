"""The folder where draftwood keeps what it makes."""

import os
from pathlib import Path


def home() -> Path:
    """The folder where draftwood keeps models.

    It is `$DRAFTWOOD_HOME`, or `~/.cache/draftwood` when that is not set.
    """
    return Path(os.environ.get("DRAFTWOOD_HOME") or "~/.cache/draftwood").expanduser().absolute()
