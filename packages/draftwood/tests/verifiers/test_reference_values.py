"""Acceptance and output law of the real verifiers against exact values, by enumeration."""

import numpy as np
import pytest

from draftwood.testing import distance, emitted_law, law_of, plain_tree, target_law
from draftwood.tree import Draw
from draftwood.verifiers import GreedyPlusOne, KSeq, Match, Rejection, Traversal, Verifier
from draftwood.verifiers.k_seq import division_factor
from draftwood_bench.run.optimal import optimal_acceptance
from reference.verifiers import EXACT, ROWS, VERIFIERS, Row, acceptance, one_level

SIX_DIGITS = 5e-7
SINGLE_DRAFT = [(verifier, draw) for verifier, draw in EXACT if verifier.name != "match"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("verifier", "draw"), SINGLE_DRAFT)
def test_a_single_draft_is_accepted_as_often_as_laws_overlap(
    verifier: Verifier, draw: Draw, row: Row
) -> None:
    assert acceptance(one_level(verifier, draw, row, count=1)) == pytest.approx(
        row.single, abs=1e-12
    )


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("verifier", "draw", "value"),
    [
        (Rejection(), "independent", "independent"),
        (Rejection(), "distinct", "distinct"),
        (Traversal(), "independent", "independent"),
        (Traversal(), "distinct", "distinct"),
        (GreedyPlusOne(), "greedy-plus-one", "greedy_plus_one"),
    ],
)
def test_acceptance_equals_the_exact_fraction(
    verifier: Verifier, draw: Draw, value: str, row: Row
) -> None:
    assert acceptance(one_level(verifier, draw, row)) == pytest.approx(
        float(getattr(row, value)), abs=1e-12
    )


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("verifier", "value"), [(KSeq(), "k_seq"), (Match(), "match_independent")])
def test_acceptance_equals_the_printed_six_digits(verifier: Verifier, value: str, row: Row) -> None:
    assert acceptance(one_level(verifier, "independent", row)) == pytest.approx(
        getattr(row, value), abs=SIX_DIGITS
    )


@pytest.mark.parametrize("row", ROWS)
def test_match_accepts_chosen_children_with_their_probability(row: Row) -> None:
    likeliest = sorted(range(len(row.q)), key=lambda token: -row.q[token])[: row.count]
    found = one_level(Match(), "chosen", row)
    assert acceptance(found) == pytest.approx(sum(row.p[token] for token in likeliest), abs=1e-12)


@pytest.mark.parametrize("row", ROWS)
def test_division_factor_and_single_acceptance_of_k_seq(row: Row) -> None:
    p, q = row.target[0], row.draft[0]
    rho = division_factor(p, q, row.count)
    assert rho == pytest.approx(row.rho, abs=5e-5)
    assert float(np.minimum(p / rho, q).sum()) == pytest.approx(row.beta, abs=5e-5)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("draw", "value"),
    [
        ("independent", "best_independent"),
        ("distinct", "best_distinct"),
        ("greedy-plus-one", "greedy_plus_one"),
    ],
)
def test_optimal_acceptance_equals_the_exact_fraction(draw: Draw, value: str, row: Row) -> None:
    best = optimal_acceptance(row.target[0], row.draft[0], row.count, draw)
    assert best == pytest.approx(float(getattr(row, value)), abs=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("verifier", "draw"), EXACT)
def test_the_emitted_token_has_the_law_of_the_target(
    verifier: Verifier, draw: Draw, row: Row
) -> None:
    count = 1 if verifier.name == "block" else row.count
    found = one_level(verifier, draw, row, count)
    assert sum(walk.probability for walk in found) == pytest.approx(1.0, abs=1e-12)
    assert distance(law_of(found, row.target, 1), target_law(row.target, 1)) < 1e-12


@pytest.mark.parametrize("row", ROWS)
def test_no_rule_accepts_more_than_the_optimum(row: Row) -> None:
    assert row.single <= row.independent <= row.best_independent
    assert row.single <= row.distinct <= row.best_distinct
    assert row.match_independent <= row.best_independent
    assert row.k_seq <= row.best_independent
    for draw in ("distinct", "greedy-plus-one"):
        best = optimal_acceptance(row.target[0], row.draft[0], row.count, draw)
        assert acceptance(one_level(Match(), draw, row)) <= best + 1e-12


@pytest.mark.parametrize("row", ROWS)
def test_k_seq_keeps_its_guarantee(row: Row) -> None:
    share = 1.0 - (1.0 - 1.0 / row.count) ** row.count
    assert acceptance(one_level(KSeq(), "independent", row)) >= share * float(row.best_independent)


def test_typical_acceptance_changes_the_law() -> None:
    typical = next(verifier for verifier in VERIFIERS if verifier.name == "typical")
    row = ROWS[3]
    law = emitted_law(typical, plain_tree((2,), "distinct", row.draft), row.target, 1)
    assert distance(law, target_law(row.target, 1)) > 0.1
