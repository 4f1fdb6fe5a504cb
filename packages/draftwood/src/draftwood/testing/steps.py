"""Single steps on texts that are written down, as drafters' docstrings show them."""

from collections.abc import Sequence
from typing import NamedTuple

from draftwood.drafters.drafter import Drafter, DraftRequest, VerifiedTree
from draftwood.models.model import Model
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.tree import DraftTree
from draftwood.verifiers import Match


class OneStep(NamedTuple):
    """A greedy step.

    Attributes:
        drafted: the paths of the draft tree, each from below the newest token to a leaf.
        accepted: draft tokens that the target kept.
        then: the target's own next token.
    """

    drafted: list[list[int]]
    accepted: list[int]
    then: int


def one_step(drafter: Drafter, target: Model, prompt: Sequence[int], steps: int = 1) -> OneStep:
    """Draft behind a prompt and verify, so many times; the last step.

    The prompt's last token is the root of the first tree.
    """
    session, tokens, rng = target.start(), list(prompt), Rng(0)
    drafting = drafter.start(DraftRequest(Sampling(0.0), rng, session))
    before = tokens[:-1]
    output = session.extend(before, hidden=drafting.reads.hidden)
    drafting.update(VerifiedTree(DraftTree.chain(before), range(len(before)), output))
    found = OneStep([], [], tokens[-1])
    for _ in range(steps):
        tree = drafting.propose(tokens[-1], Context(tokens[:-1], len(prompt)))
        output = session.forward(tree, hidden=drafting.reads.hidden)
        verdict = Match()(tree, Sampling(0.0).probs(output.rows), rng)
        session.commit([0, *verdict.path])
        drafting.update(VerifiedTree(tree, [0, *verdict.path], output))
        accepted = [tree.token_list[node] for node in verdict.path]
        tokens += [*accepted, verdict.next_token]
        found = OneStep(_paths(tree), accepted, verdict.next_token)
    drafting.close()
    return found


def _paths(tree: DraftTree) -> list[list[int]]:
    leaves = [node for node, below in enumerate(tree.children) if node and not below]
    return [[tree.token_list[node] for node in tree.path_to(leaf)] for leaf in leaves]
