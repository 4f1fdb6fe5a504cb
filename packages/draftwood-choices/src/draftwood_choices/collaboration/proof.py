"""Checks of collaboration, which need no model: each token is as its writer would write it."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from draftwood.sampling_params import SamplingParams
from draftwood.testing import TableModel
from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult, tables
from draftwood.testing.statistics import ranked_chi_square
from draftwood_choices.collaboration.loop import Collaboration
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules import RULES as ALL_RULES
from draftwood_choices.collaboration.rules import EntropySwitch, Foreal, RandomTurns
from draftwood_choices.collaboration.table_models import table_language_model
from draftwood_choices.collaboration.writer import LocalWriter

TEXTS, LENGTH, ROOT, LETTERS = 12, 80, 0, "ab.\n"
CIRCLE = "ab.abbabb\n\n"
"""Text that a table writes again and again: two sentences, and a step's end."""
RULES = (Foreal(3, 0.5), EntropySwitch(1.6, 2, 2), RandomTurns(0.5, 3))
"""Rules by which both writers of the tables write; none of them drops what it dislikes."""


class Deaf(LocalWriter):
    """A wrong writer: it reads nothing, and begins each turn behind the prompt."""

    def tokens(self, passages: Sequence[Passage]) -> list[int]:
        return []

    def judge(self, passages: Sequence[Passage]) -> float:
        return 0.0


def collaboration_p_value(rule: CollaborationRule, kind: type[LocalWriter] = LocalWriter) -> float:
    """P-value of texts of two tables, each token given its writer and the token before."""
    found = (table_language_model(table, LETTERS) for table in tables())
    models = dict(zip((LEADER, FOLLOWER), found, strict=True))
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


def copies_write(kind: type[LocalWriter] = LocalWriter) -> list[str]:
    """Names of rules by which two copies of one table write another text than it does, greedily."""
    count = len(CIRCLE)
    lm = table_language_model(TableModel(2.0 * np.roll(np.eye(count), 1, axis=1)), CIRCLE)
    alone = lm.generate([ROOT], max_new_tokens=LENGTH).token_ids
    params, wrong = SamplingParams(max_new_tokens=LENGTH), list[str]()
    for rule in (each() for each in ALL_RULES.values()):
        writers = {name: kind(lm, [ROOT], params) for name in (LEADER, FOLLOWER)}
        made = Collaboration(rule, writers, LENGTH, seed=0).run()
        if [token for each in made.passages for token in each.ids] != alone:
            wrong.append(rule.name)
    return wrong


def _check_copies() -> CheckResult:
    wrong = ", ".join(copies_write())
    told = f"another text by {wrong}" if wrong else f"its text by {len(ALL_RULES)} rules"
    return CheckResult("identity", COPIES, not wrong, told)


def _name(rule: CollaborationRule) -> str:
    return f"{rule.name}, two tables"


CONTROL, COPIES = "a writer that does not catch up", "two copies of one model"
CHECKS: dict[str, Check] = {
    COPIES: _check_copies,
    CONTROL: _check_control,
    **{_name(rule): partial(_check, rule) for rule in RULES},
}
"""By what each checks."""
