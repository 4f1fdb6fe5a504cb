"""Measure the steps of methods on a few short texts."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from draftwood.costs.curve import Curve
    from draftwood.stats import Stats, Step
    from draftwood.text.language_model import LanguageModel

PROMPTS = (
    "List five animals and say in one sentence each where they live.",
    (
        "Correct the spelling, then write the text once more in capitals: The qick brown fox jumps"
        " ovr the lazy dog."
    ),
)
TOKENS = 48  # per prompt and method


@dataclass
class Cost:
    """Steps of a method on a few short texts.

    Attributes:
        steps: after the prompts' forward passes.
    """

    steps: list["Step"] = field(default_factory=list)

    @property
    def stats(self) -> "Stats":
        from draftwood.stats import Stats

        return Stats.of(self.steps)

    def as_json(self, curve: "Curve", plain: "Stats") -> dict[str, float]:
        """The numbers that are printed; the expected speed-up is that of docs/how-it-works.md.

        Args:
            curve: of passes as texts make them; see ``corrected``.
            plain: decoding without drafts.
        """
        stats, runs = self.stats, len(self.steps)
        target = sum(curve(1 + step.drafted) for step in self.steps)
        seconds = (stats.seconds["draft"] + target + stats.seconds["verify"]) / runs
        around = plain.seconds["draft"] + plain.seconds["verify"]
        plainly = curve(1) + around / plain.target_runs
        return {
            "draft_seconds_per_run": round(stats.seconds["draft"] / runs, 9),
            "nodes_per_run": round(1 + stats.drafted / runs, 3),
            "block_efficiency": round(stats.block_efficiency, 4),
            "expected_speed_up": round(stats.block_efficiency * plainly / seconds, 4),
            "seen_speed_up": round(stats.tokens_per_second / plain.tokens_per_second, 4),
        }


def corrected(curve: "Curve", costs: Iterable[Cost]) -> "Curve":
    """Correct a measured curve by the passes of texts.

    A measured pass follows one of another size, and hands out nothing: passes of texts of one size
    in a row are faster, and those that sources learn of are slower.
    """
    from draftwood.costs.following import Following
    from draftwood.sampling import PassTime

    following = Following(curve)
    for cost in costs:
        for step in cost.steps:
            following.saw(PassTime(1 + step.drafted, 0.0, step.seconds["target"]))
    return following.curve


def write(
    models: dict[str, "LanguageModel"], end: float, bar: "Progress", task: "TaskID"
) -> dict[str, Cost]:
    """Run every prompt by every method in turn; each gets its share of the time until ``end``."""
    costs = {name: Cost() for name in models}
    left = len(models) * (len(PROMPTS) + 1)
    bar.reset(task, total=left)
    for number, prompt in enumerate((PROMPTS[0], *PROMPTS)):  # the first time warms up
        for name, lm in models.items():
            bar.update(task, description=f"drafts, {name}")
            now = time.perf_counter()
            steps = (
                []
                if now >= end
                else _write_one(lm, prompt, TOKENS if number else 8, now + (end - now) / left)
            )
            costs[name].steps += steps if number else []
            left -= 1
            bar.advance(task)
    return costs


def _write_one(lm: "LanguageModel", prompt: str, tokens: int, end: float) -> list["Step"]:
    """Write one text until the time is up; return its steps after the prompt's forward pass."""
    limit = lm.model.context_length
    encoded = lm.encode(prompt)
    stream = lm.stream(
        encoded if limit is None else encoded[: max(1, limit // 2)], max_new_tokens=tokens
    )
    for _ in stream:
        if time.perf_counter() > end:
            break
    return [step for step in stream.steps if not step.is_prefill]
