"""Server-sent events from the pieces in which they come."""

import json
from typing import Any

DATA = b"data: "


class EventReader:
    """Reads the body of a stream, piece by piece.

    Attributes:
        ended: whether the stream has said that it is over.
        rest: that is no whole line yet.
    """

    def __init__(self) -> None:
        self.ended, self.rest = False, b""

    def read(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that this piece completes.

        Raises:
            OSError: for an event that is an error.
        """
        *lines, self.rest = (self.rest + piece).split(b"\n")
        found = []
        for line in map(bytes.rstrip, lines):
            if line == DATA + b"[DONE]":
                self.ended = True
            elif line.startswith(DATA):
                found.append(json.loads(line.removeprefix(DATA)))
                if "error" in found[-1]:
                    raise OSError(f"the server broke off: {found[-1]['error']}")
        return found
