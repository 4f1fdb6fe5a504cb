"""Steps of a text, made by the library as a whole or by Python piece by piece."""

from collections.abc import Iterator

import pytest

from draftwood import engine
from draftwood.engine import InTurn
from draftwood.engine.scheduler import run_all
from draftwood.native.step import StepCaller
from draftwood.stats import Step


def trees_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the size of each tree of a step that the library makes."""
    sizes: list[int] = []
    result = StepCaller.result

    def counted(self: StepCaller, vocabulary: int, number: int = 0) -> object:
        made = result(self, vocabulary, number)
        sizes.append(len(made.tokens))
        return made

    monkeypatch.setattr(StepCaller, "result", counted)
    return sizes


def steps(text: engine.Sequence, whole: bool = True) -> Iterator[Step]:
    """The text's steps; where they are not whole Python makes them."""
    if not whole:
        text.open()
        text.executor = InTurn(text)
    return (step for _, step in run_all([text]))
