"""Seconds of a step by phase."""

from draftwood.together import clock


class Stopwatch:
    """Seconds by phase, of the text alone where several take turns."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {"draft": 0.0, "target": 0.0, "verify": 0.0, **(seconds or {})}
        self._since = clock()

    def lap(self, phase: str) -> None:
        now = clock()
        self.seconds[phase] += now - self._since
        self._since = now
