"""Where a request hears what was written for it."""

import asyncio
from collections.abc import Sequence

from draftwood.serve.errors import ApiError
from draftwood.serve.texts import TextUpdate

Told = Sequence[TextUpdate] | ApiError | None
"""What a request hears: updates of its texts, an error that ends it, or that it was cancelled."""


class Mailbox:
    """What was told and not heard yet. Used within one event loop."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self._news = asyncio.Event()

    def put(self, told: Told) -> None:
        self._told.append(told)
        self._news.set()

    async def get(self, seconds: float) -> list[Told]:
        """All that was told since the last call, waiting for it.

        Raises:
            asyncio.TimeoutError: where nothing came in time.
        """
        await asyncio.wait_for(self._news.wait(), seconds)
        told, self._told = self._told, []
        self._news.clear()
        return told
