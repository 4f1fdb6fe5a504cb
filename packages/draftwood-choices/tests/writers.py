"""Two table models that write one text, small enough to enumerate."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from draftwood import LanguageModel, SamplingParams
from draftwood.drafters import PromptLookup
from draftwood.engine import Method
from draftwood.testing import TableModel, chi_square
from draftwood.testing.outcomes import outcomes
from draftwood.verifiers import Match
from draftwood_choices.collaboration.loop import Collaboration, CollaborationResult
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.writer import LocalWriter
from letters import letters

A, DOT, BREAK = 0, 1, 2
TOKENS = ("a", ".", "Ċ")
"""A letter, a mark and a line break."""
LENGTH, TEXTS = 4, 700
PROMPT = [A]


def table(seed: int) -> np.ndarray:
    """Logits of the next token by the last one; some rows are surer than others."""
    rng = np.random.default_rng(seed)
    sure = np.array([[0.5], [1.5], [3.0]])
    return (rng.standard_normal((3, 3)) * sure).astype(np.float32)


TABLES = {LEADER: table(3), FOLLOWER: table(4)}


def table_lm(logits: np.ndarray) -> LanguageModel:
    method = Method(PromptLookup(1, 2, 3), Match())
    return LanguageModel(TableModel(logits), letters(TOKENS), method, "table")


@cache
def table_lms() -> dict[str, LanguageModel]:
    return {name: table_lm(logits) for name, logits in TABLES.items()}


class ForgetfulWriter(LocalWriter):
    """A wrong writer: it goes on behind what it wrote itself, and reads nothing else."""

    def tokens(self, passages: Sequence[Passage]) -> list[int]:
        mine = [each for each in passages if each.writer == self.name]
        return [token for each in mine for token in each.ids]

    name = ""


def written(
    rule: CollaborationRule,
    seed: int,
    most: int = LENGTH,
    kind: type[LocalWriter] = LocalWriter,
    models: Sequence[LanguageModel] = (),
    temperature: float = 1.0,
) -> CollaborationResult:
    """A text of the two table models, or of others, the leader first."""
    params = SamplingParams(temperature=temperature, max_new_tokens=most)
    found = dict(zip((LEADER, FOLLOWER), models, strict=True)) if models else table_lms()
    writers = {name: kind(of, PROMPT, params) for name, of in found.items()}
    for name, each in writers.items():
        if isinstance(each, ForgetfulWriter):
            each.name = name
    return Collaboration(rule, writers, most, seed).run()


def ids(result: CollaborationResult) -> tuple[int, ...]:
    return tuple(token for each in result.passages for token in each.ids)


def p_value(
    rule: CollaborationRule,
    reference: Callable[[Any], tuple[int, ...]],
    kind: type[LocalWriter] = LocalWriter,
    texts: int = TEXTS,
) -> float:
    """P-value of texts by the loop, given a plain description of the rule, which is enumerated."""
    chances = Counter[tuple[int, ...]]()
    for probability, tokens in outcomes(reference):
        chances[tokens] += probability  # type: ignore[assignment]
    assert abs(sum(chances.values()) - 1.0) < 1e-9
    counts = Counter(ids(written(rule, seed, kind=kind)) for seed in range(texts))
    return chi_square(counts, chances)


def probs(writer: str, before: Sequence[int]) -> np.ndarray:
    """Distribution of the next token after an answer."""
    row = TABLES[writer][[*PROMPT, *before][-1]].astype(np.float64)
    shares = np.exp(row - row.max())
    return shares / shares.sum()


def bits(writer: str, before: Sequence[int]) -> float:
    """Entropy of that distribution."""
    chances = probs(writer, before)
    return float(-(chances * np.log2(chances)).sum())
