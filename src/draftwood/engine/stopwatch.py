"""Seconds of a step by phase."""

import time


class Stopwatch:
    """Seconds by phase."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {"draft": 0.0, "target": 0.0, "verify": 0.0, **(seconds or {})}
        self._since = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now
