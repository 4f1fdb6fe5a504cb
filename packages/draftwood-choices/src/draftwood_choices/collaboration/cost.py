"""Costs of a writer."""

from dataclasses import dataclass


@dataclass
class WriterCost:
    """Counts of one writer.

    Attributes:
        kept: tokens of the text.
        dropped: tokens that it wrote and that are not in the text.
        prompt: tokens of the prompt.
        caught_up: tokens that it read because another wrote them, or because it has to read its
            own again.
        passes: forward passes, prefills included; of a server its requests.
        turns: passages.
        seconds: that it worked.
    """

    kept: int = 0
    dropped: int = 0
    prompt: int = 0
    caught_up: int = 0
    passes: int = 0
    turns: int = 0
    seconds: float = 0.0

    @property
    def written(self) -> int:
        """Tokens that it wrote, which a server bills."""
        return self.kept + self.dropped

    def as_json(self) -> dict[str, float | int]:
        return {
            "tokens": self.kept,
            "dropped": self.dropped,
            "prompt_tokens": self.prompt,
            "caught_up": self.caught_up,
            "passes": self.passes,
            "turns": self.turns,
            "seconds": round(self.seconds, 6),
        }
