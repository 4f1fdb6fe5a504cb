"""Find the rank of this process among torchrun's."""

import os


def rank() -> int | None:
    """The process's number, 0 for the first; None outside of torchrun."""
    found = os.environ.get("RANK")
    return None if found is None or "WORLD_SIZE" not in os.environ else int(found)
