"""Negative controls: rules that are known to be wrong, by how much, and the checks that must see
it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from draftwood.rng import Rng
from draftwood.sampling import LazyProbs, Sampling
from draftwood.testing import check_verifier, distance, law_of, target_law
from draftwood.testing.laws import Rule
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import KSeq, Match, NodeProbs, Rejection, Verdict, Verifier
from reference.verifiers import ROWS, one_level


class Wrong:
    """A rule that claims to be exact for distinct siblings."""

    name = "wrong"
    exact_for: frozenset[Draw] = frozenset({"distinct"})

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        return self._rule(tree, target_probs, rng)


def sorted_by_q(sign: int) -> Rule:
    """Rejection with siblings in falling or rising order of q; for trees of one level."""

    def verify(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        children = sorted(
            tree.children[0], key=lambda child: sign * float(tree.probs[0][tree.token_list[child]])
        )
        order = [0, *children]
        verdict = Rejection()(tree.keep(order), target_probs, rng)
        return replace(verdict, path=[order[node] for node in verdict.path])

    return verify


def relabelled(verifier: Verifier) -> Rule:
    """The rule for independent siblings."""
    return lambda tree, target_probs, rng: verifier(
        replace(tree, draw="independent"), target_probs, rng
    )


def falling(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    return (
        sorted_by_q(-1)(tree, target_probs, rng)
        if tree.depth == 1
        else Rejection()(tree, target_probs, rng)
    )


def accepts_everything(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    path = tree.path_to(len(tree) - 1)
    return Verdict(path, rng.draw(target_probs[path[-1] if path else 0]))


def forgets_the_residual(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    verdict = Rejection()(tree, target_probs, rng)
    last = verdict.path[-1] if verdict.path else 0
    return replace(verdict, next_token=rng.draw(target_probs[last]))


def jumps(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    verdict = Match()(tree, target_probs, rng)
    return replace(verdict, path=verdict.path[-1:])


def writes_to_the_target(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    verdict = Match()(tree, target_probs, rng)
    target_probs[0][:] *= 0.5
    return verdict


def answers_yes_or_no(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    verdict = Match()(tree, target_probs, rng)
    return replace(verdict, next_token=verdict.next_token > 0)


def refuses(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    raise ValueError("no")


def fails_in_a_corner(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
    """Rejection that ends with an error where nothing that branches can be accepted."""
    if len(tree.children[0]) > 1 and not (target_probs[0] * tree.row_of(tree.children[0][0])).any():
        raise ValueError("there is nothing to draw")
    return Rejection()(tree, target_probs, rng)


@pytest.mark.parametrize(
    ("rule", "errors"),
    [
        (sorted_by_q(-1), (0.228052, 0.369718, 0.134838, 0.166667)),
        (sorted_by_q(1), (0.354000, 0.531000, 0.163000, 0.307143)),
        (relabelled(Rejection()), (0.0, 0.0, 0.004463, 0.125000)),
        (relabelled(KSeq()), (0.083068, 0.115938, 0.055905, 0.161224)),
    ],
    ids=["falling q", "rising q", "not renormalised", "k-seq on distinct siblings"],
)
def test_size_of_the_error(rule: Rule, errors: tuple[float, ...]) -> None:
    for row, error in zip(ROWS, errors, strict=True):
        law = law_of(one_level(Wrong(rule), "distinct", row), row.target, 1)
        assert distance(law, target_law(row.target, 1)) == pytest.approx(error, abs=5e-7)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (falling, r"distinct draws, widths \(2,\).*distribution of the first 1 tokens"),
        (relabelled(Rejection()), "distribution of the first"),
        (relabelled(KSeq()), "distribution of the first"),
        (accepts_everything, "distribution of the first"),
        (forgets_the_residual, "distribution of the first"),
        (jumps, "no path from the root"),
        (writes_to_the_target, "must not write"),
        (answers_yes_or_no, "must be an int"),
        (refuses, "ValueError: no"),
        (fails_in_a_corner, "ValueError: there is nothing to draw"),
    ],
)
def test_check_verifier_catches(rule: Rule, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_verifier(Wrong(rule))


ALWAYS: Callable[[Sampling], bool] = lambda sampling: True  # noqa: E731


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (ALWAYS, "random logits at temperature 1"),
        (lambda sampling: sampling.temperature not in (0.0, 1.0), "at temperature 0.7"),
        (lambda sampling: sampling.top_p < 1.0, "at top-p 0.8"),
        (lambda sampling: bool(sampling.logit_bias), "at a banned token"),
    ],
    ids=["logits", "temperature", "top-p", "ban"],
)
def test_check_verifier_catches_what_is_wrong_under_some_options_alone(
    where: Callable[[Sampling], bool], message: str
) -> None:
    def verify(tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        children = tree.children[0]
        if isinstance(target_probs, LazyProbs) and children:
            sampling = target_probs.sampler
            if isinstance(sampling, Sampling) and sampling.temperature and where(sampling):
                return Verdict(children[:1], rng.draw(target_probs[children[0]]))
        return Match()(tree, target_probs, rng)

    with pytest.raises(AssertionError, match=message):
        check_verifier(Wrong(verify))


def test_check_verifier_catches_a_claim_too_many() -> None:
    class Claims(Wrong):
        exact_for = frozenset({"chosen"})

    with pytest.raises(AssertionError, match="chosen draws"):
        check_verifier(Claims(Rejection()))
