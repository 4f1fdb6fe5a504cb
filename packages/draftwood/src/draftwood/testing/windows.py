"""Exact distribution of texts that a window of Jacobi's drafts writes, by all random choices."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from draftwood.drafters.drafter import Drafter, DraftRequest, VerifiedTree
from draftwood.drafters.jacobi_sampled import JacobiSession
from draftwood.models.model import Model, ModelOutput
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.testing.laws import Law, distance, sampled_law
from draftwood.testing.outcomes import outcomes
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection, Verifier


@dataclass(frozen=True, eq=False)
class WindowCase:
    """Small text to be enumerated.

    Attributes:
        model: whose tokens are few.
        prompt: at least one token.
        sampling: rules of sampling.
        tokens: length of the text.
    """

    model: Model
    prompt: Sequence[int]
    sampling: Sampling
    tokens: int = 3

    def off(self, drafter: Drafter, rule: Verifier | None = None) -> float:
        """Total variation between the drafted texts' distribution and the model's.

        Args:
            drafter: whose sessions are windows of Jacobi's drafts.
            rule: verifier; None takes rejection.
        """
        context = Context(list(self.prompt), len(self.prompt))
        law = sampled_law(self.model, self.sampling, context, self.tokens)
        return distance(self.law(drafter, rule or Rejection()), law)

    def law(self, drafter: Drafter, rule: Verifier) -> Law:
        """Distribution of the drafted texts.

        Texts that agree in tokens and rows have one future, and are followed as one.
        """
        law: Law = {}
        first = self._begun(drafter)
        open_ = {first.key: (1.0, first)}
        while open_:
            after: dict[tuple[object, ...], tuple[float, _State]] = {}
            for chance, state in open_.values():
                for taken, found in outcomes(
                    lambda rng, state=state: self._stepped(state, rule, rng)
                ):
                    if len(found.tokens) >= self.tokens:
                        text = found.tokens[: self.tokens]
                        law[text] = law.get(text, 0.0) + chance * taken
                    else:
                        before = after.get(found.key, (0.0, found))[0]
                        after[found.key] = (before + chance * taken, found)
            open_ = after
        return law

    def _begun(self, drafter: Drafter) -> "_State":
        """The text of which nothing but the prompt is written."""
        session = drafter.start(DraftRequest(self.sampling, Rng(0), self.model.start()))
        assert isinstance(session, JacobiSession)
        before = list(self.prompt[:-1])
        if before:
            session.update(VerifiedTree(DraftTree.chain(before), range(len(before)), None))
        return _State((), session)

    def _stepped(self, state: "_State", rule: Verifier, rng: Rng) -> "_State":
        """The text after one pass, whose random choices are ``rng``'s."""
        session = copy(state.session)
        session.rng = rng
        text = [*self.prompt, *state.tokens]
        context = Context(text[:-1], len(self.prompt))
        tree = session.propose(text[-1], context)
        target = self.model.start()
        if text[:-1]:
            target.extend(text[:-1])
        rows = target.forward(tree).rows
        target.close()
        verdict = rule(tree, LazyProbs(rows, self.sampling, tree, context), rng)
        session.update(VerifiedTree(tree, [0, *verdict.path], ModelOutput(rows)))
        told = [tree.token_list[node] for node in verdict.path]
        return _State((*state.tokens, *told, verdict.next_token), session)


@dataclass(frozen=True)
class _State:
    """A text in the middle: its tokens behind the prompt, and its drafter."""

    tokens: tuple[int, ...]
    session: JacobiSession

    @property
    def key(self) -> tuple[object, ...]:
        """All that its future depends on."""
        held = [getattr(self.session, "kept", []), self.session.drafts]
        return self.tokens, b"".join(row.tobytes() for row in self.session.rows), str(held)
