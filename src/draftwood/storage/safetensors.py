"""What a safetensors file says of itself, without its numbers."""

import json
from pathlib import Path
from typing import Any


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Type, shape and place of each tensor in a file, by name.

    Raises:
        ValueError: for a file that is none or not whole; only lengths are compared.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= size - 8:
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        promised = (
            8 + length + max((each["data_offsets"][1] for each in header.values()), default=0)
        )
        if promised != size:
            raise ValueError(f"{size} bytes came, {promised} were promised")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); fetch the file again"
        ) from None
    return header
