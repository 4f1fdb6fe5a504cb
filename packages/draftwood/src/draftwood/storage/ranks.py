"""Find the rank of this process among torchrun's."""

import os


def rank() -> int | None:
    """The process's number, 0 for the first; None outside of torchrun."""
    found = os.environ.get("RANK", "")
    return int(found) if found.isdecimal() and "WORLD_SIZE" in os.environ else None
