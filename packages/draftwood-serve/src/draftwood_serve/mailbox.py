"""Mailbox through which a request gets its updates."""

import asyncio
from collections.abc import Sequence

from draftwood_serve.errors import ApiError
from draftwood_serve.texts import TextUpdate

Told = Sequence[TextUpdate] | ApiError | None
"""Message to a request: updates of its texts, an error that ends it, or None once cancelled."""


class Mailbox:
    """Messages not read yet. Used within one event loop, and read by one task."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self._news: asyncio.Future[None] | None = None  # while somebody waits

    def put(self, told: Told) -> None:
        self._told.append(told)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def get(self, seconds: float) -> list[Told]:
        """Wait for messages since the last call.

        Raises:
            asyncio.TimeoutError: where nothing came in time.
        """
        if not self._told:
            # each step of each text comes by here: asyncio.wait_for would make a task each time
            loop = asyncio.get_running_loop()
            self._news = loop.create_future()
            late = loop.call_later(seconds, self._expire, self._news)
            try:
                await self._news
            finally:
                late.cancel()
                self._news = None
        told, self._told = self._told, []
        return told

    @staticmethod
    def _expire(news: "asyncio.Future[None]") -> None:
        if not news.done():
            news.set_exception(asyncio.TimeoutError())
