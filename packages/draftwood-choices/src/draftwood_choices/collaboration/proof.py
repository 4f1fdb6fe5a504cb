"""Checks of collaboration, which need no model: each token has its writer's distribution."""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from draftwood.drafters import PromptLookup
from draftwood.engine import Method
from draftwood.sampling_params import SamplingParams
from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult, tables
from draftwood.testing.statistics import ranked_chi_square
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match
from draftwood_choices.collaboration.loop import Collaboration
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules import EntropySwitch, Foreal, RandomTurns
from draftwood_choices.collaboration.writer import LocalWriter

TEXTS, LENGTH, ROOT = 12, 80, 0
RULES = (Foreal(3, 0.5), EntropySwitch(1.6, 2, 2), RandomTurns(0.5, 3))
"""Rules by which both writers of the tables write; none of them drops what it dislikes."""


class LetterTokenizer:
    """A tokenizer of the tables' four tokens, as far as decoding needs one."""

    letters: ClassVar[str] = "ab.\n"
    chat_template: ClassVar[Any] = None
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [self.letters.index(each) for each in text if each in self.letters]}

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(self.letters[token] for token in tokens)

    def get_vocab(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters)}


class Deaf(LocalWriter):
    """A wrong writer: it reads nothing, and begins each turn behind the prompt."""

    def tokens(self, passages: Sequence[Passage]) -> list[int]:
        return []


def collaboration_p_value(rule: CollaborationRule, kind: type[LocalWriter] = LocalWriter) -> float:
    """P-value of texts of two tables, each token given its writer and the token before."""
    names, method = (LEADER, FOLLOWER), Method(PromptLookup(1, 2, 3), Match())
    tokenizer: Any = LetterTokenizer()
    models = {
        name: LanguageModel(table, tokenizer, method, name)
        for name, table in zip(names, tables(), strict=True)
    }
    params = SamplingParams(temperature=1.0, max_new_tokens=LENGTH)
    tokens, chances = list[int](), list[np.ndarray]()
    for seed in range(TEXTS):
        writers = {name: kind(lm, [ROOT], params) for name, lm in models.items()}
        before = ROOT
        for passage in Collaboration(rule, writers, LENGTH, seed):
            for token in passage.ids:
                weights = np.exp(np.asarray(models[passage.writer].model.logits[before]))  # type: ignore[attr-defined]
                chances.append(weights / weights.sum())
                tokens.append(token)
                before = token
    return ranked_chi_square(np.array(tokens), np.stack(chances))


def _check(rule: CollaborationRule) -> CheckResult:
    found = collaboration_p_value(rule)
    told = "chi-square of each token under its writer"
    return CheckResult("law", _name(rule), found >= SIGNIFICANCE, told, found)


def _check_control() -> CheckResult:
    found = collaboration_p_value(RULES[-1], Deaf)
    caught = found < SIGNIFICANCE
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", CONTROL, caught, told, found)


def _name(rule: CollaborationRule) -> str:
    return f"{rule.name}, two tables"


CONTROL = "a writer that does not catch up"
CHECKS: dict[str, Check] = {
    CONTROL: _check_control,
    **{_name(rule): partial(_check, rule) for rule in RULES},
}
"""By what each checks."""
