"""Checks that answers in a batch are those of single requests."""

from draftwood import engine
from draftwood.drafters.draft_model import DraftModel
from draftwood.engine import Options, run_all
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.testing.promises import CheckResult, tables
from draftwood.verifiers import Match

TOGETHER = "answers in a batch"
ANSWERS, LENGTH = 8, 40


def check_answers() -> CheckResult:
    """Compare N answers in a batch with N single requests, seed by seed."""
    same = answers(together=True) == answers(together=False)
    told = f"{ANSWERS} answers the same" if same else "an answer differs from its single request"
    return CheckResult("identity", TOGETHER, same, told)


def check_control() -> CheckResult:
    """Compare them with single requests of other seeds, which must differ."""
    caught = answers(together=True) != answers(together=False, first=1)
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", f"{TOGETHER}, of other seeds", caught, told)


def answers(together: bool, first: int = 0) -> list[list[int]]:
    """Drafted answers on a table model, in one task or in one each.

    Args:
        first: seed of the first one.
    """
    target, draft = tables()
    drafter = DraftModel(draft, Widths((1, 1)))
    members = [
        engine.Sequence(target, drafter, Match(), [0], Options(Sampling(1.0), LENGTH, seed=seed))
        for seed in range(first, first + ANSWERS)
    ]
    found: list[list[int]] = [[] for _ in members]
    if together:
        for _, steps in run_all([engine.ParallelSampling(members)]):
            for number, step in steps:
                found[number] += step.tokens
    else:
        for number, step in run_all(members):
            found[number] += step.tokens
    return found


CHECKS = {
    TOGETHER: check_answers,
    f"{TOGETHER}, of other seeds": check_control,
}
"""By what each checks."""
