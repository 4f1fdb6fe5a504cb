"""Tasks about functions of Python packages: write them, test, change, explain, describe."""

from collections.abc import Callable

from draftwood_train.data.everyday.filling import Filler
from draftwood_train.data.everyday.functions import Function
from draftwood_train.data.everyday.tasks import Drawn, Make, PromptTask

FOLLOWS = "code follow-ups"


def code_tasks() -> tuple[PromptTask, ...]:
    """Tasks of the code mix beside the everyday ones: about half of all its prompts are code."""
    return (
        PromptTask("functions", 44, _about("functions", lambda each: each.stub), FOLLOWS),
        PromptTask("edits", 34, _about("edits", lambda each: each.whole), FOLLOWS),
        PromptTask("tests", 24, _about("tests", lambda each: each.whole), FOLLOWS),
        PromptTask("explanations", 26, _about("explanations", lambda each: each.bare)),
        PromptTask("docstrings", 10, _about("docstrings", lambda each: each.bare), FOLLOWS),
    )


def _about(frame: str, shown: Callable[[Function], str]) -> Make:
    """Prompts that ask for something about a function that they show."""

    def make(filler: Filler, number: int) -> Drawn:
        function = filler.of(filler.material.functions)
        wish = filler.filled(filler.frame(frame, fits=False))
        fence = "```python" if filler.rng.random() < 0.8 else "```"
        parts = [wish, f"{fence}\n{shown(function)}\n```"]
        if not wish.endswith(":") and filler.rng.random() < 0.3:
            parts.reverse()
        return Drawn("\n\n".join(parts), function.book.partition(":")[0])

    return make
