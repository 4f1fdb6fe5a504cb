"""Instructions that a program can check, by the checkers of the LM Evaluation Harness."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from draftwood.optional import install_command
from draftwood_bench.plan.prompt import Prompt


def follows(prompt: Prompt, text: str) -> list[bool]:
    """Tell for each of a prompt's instructions whether an answer follows it (arXiv 2311.07911).

    This is the strict reading: the answer counts as it stands, and an empty one follows nothing.

    Raises:
        ModuleNotFoundError: without the harness; with the command that installs it.
        ValueError: for a kind of instruction that it does not know.
        LookupError: without NLTK's sentences, which a few kinds need.
    """
    return [
        bool(text.strip()) and bool(_checker(each.name, prompt.turns[0], each.options)(text))
        for each in prompt.instructions
    ]


def _checker(name: str, asked: str, options: Mapping[str, Any]) -> Any:
    kinds = _kinds()
    if name not in kinds:
        raise ValueError(f"there is no kind of instruction {name!r}; known: {', '.join(kinds)}")
    made = kinds[name](name)
    made.build_description(**options)
    if "prompt" in (made.get_instruction_args() or {}):
        made.build_description(prompt=asked)

    def checked(text: str) -> bool:
        try:
            return made.check_following(text)
        except LookupError as error:
            if "punkt" not in str(error):
                raise
            raise LookupError(
                f"instruction {name} counts sentences: python -m nltk.downloader punkt_tab"
            ) from None

    return checked


@cache
def _kinds() -> Mapping[str, Any]:
    """Checkers by the names of their kinds."""
    try:
        from langdetect import DetectorFactory  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks.ifeval.instructions_registry import (  # pyright: ignore[reportMissingImports]
            INSTRUCTION_DICT,
        )
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"instructions need their checkers: {install_command('draftwood-bench[instructions]')}",
            name=error.name,
        ) from None
    DetectorFactory.seed = 0  # else it may tell a short text's language otherwise each time
    return INSTRUCTION_DICT
