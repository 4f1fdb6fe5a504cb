"""Exact distribution of texts that a window of Jacobi's drafts writes, by all random choices."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.jacobi_sampled import JacobiSampled, JacobiSession
from draftwood.drafters.window_starts import Row
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
        rows = [b"".join(row.tobytes() for row in each) for each in self._rows]
        return self.tokens, *rows, str(held)

    @property
    def _rows(self) -> tuple[Sequence[Row], Sequence[Row]]:
        return self.session.past, self.session.rows


class _Uncut(JacobiSession):
    """States rows as they were before top-k, and draws from those after."""

    uncut: Sequence[Row] = ()

    def _drafted(self, root: int, count: int) -> tuple[list[int], list[Row]]:
        tokens, rows = super()._drafted(root, count)
        known = len(self.rows)
        stated = self.uncut[len(self.uncut) - known :]
        return tokens, [*stated[:count], *rows[known:]]

    def _rows(self, verified: VerifiedTree, nodes: range) -> list[Row]:
        whole = replace(self.sampler, top_k=0)  # type: ignore[type-var]
        self.uncut = list(whole.probs(verified.logits[nodes.start : nodes.stop]))
        return super()._rows(verified, nodes)


class _Outliving(JacobiSession):
    """Keeps drafts behind a rejection, under their new rows."""

    kept: Sequence[int] = ()

    def _drafted(self, root: int, count: int) -> tuple[list[int], list[Row]]:
        tokens, rows = super()._drafted(root, count)
        kept = list(self.kept)[:count]
        return [root, *kept, *tokens[1 + len(kept) :]], rows

    def update(self, verified: VerifiedTree) -> None:
        super().update(verified)
        # the first draft token below was rejected; those behind it stay at their places
        self.kept = verified.tree.token_list[verified.path[-1] + 2 :]


class _Passing(_Outliving):
    """Keeps drafts behind a rejection that would pass the test against their new rows."""

    def update(self, verified: VerifiedTree) -> None:
        super().update(verified)
        tree, first = verified.tree, verified.path[-1] + 2
        places = zip(range(first, len(tree)), self.rows, strict=False)
        passing = [
            self.rng.accept(
                float(row[tree.token_list[node]] / tree.row_of(node)[tree.tokens[node]])
            )
            for node, row in places
        ]
        self.kept = [token for token, passed in zip(self.kept, passing, strict=True) if passed][
            : (passing + [False]).index(False)
        ]


class _Wrong(JacobiSampled):
    """A drafter with a session that is wrong."""

    kind: ClassVar[type[JacobiSession]]

    def start(self, request: DraftRequest) -> DraftSession:
        return self.kind(self, request)


class _Uncutting(_Wrong):
    kind = _Uncut


class _Keeping(_Wrong):
    kind = _Outliving


class _KeepingWhatPasses(_Wrong):
    kind = _Passing


WRONG_WINDOWS: Mapping[str, type[JacobiSampled]] = {
    "rows stored before top-k": _Uncutting,
    "drafts behind a rejection, kept under their new rows": _Keeping,
    "drafts behind a rejection, kept where they would pass": _KeepingWhatPasses,
}
"""Drafters that must be caught: the first where there is a top-k."""
