"""Texts under a constraint: masks at the nodes of draft trees, and trees that fit them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftwood.arrays import Bool, Float, as_array
from draftwood.engine.constraint import Constraint, ConstraintState
from draftwood.engine.options import Options
from draftwood.models.model import Model
from draftwood.sampling import Context, Sampler
from draftwood.tree import DraftTree

FORCED = "grammar"
"""The proposer of forced tokens, as reports call it."""

AT_ROOT, BELOW = 32, 4
"""Most forced tokens that are drafted in a row: below the root, where they are certain to be
accepted, and below another leaf, where they are as likely as the leaf.
"""


class _Branch:
    """The text along one branch; masks are computed when somebody reads them, once."""

    __slots__ = ("_children", "_mask", "state")

    def __init__(self, state: ConstraintState) -> None:
        self.state = state
        self._children: dict[int, _Branch | None] = {}
        self._mask: Bool[np.ndarray, " vocab"] | None = None

    def child(self, token: int) -> "_Branch | None":
        """The branch one token longer; None where the token is forbidden."""
        if token not in self._children:
            state = self.state.after(token)
            self._children[token] = None if state is None else _Branch(state)
        return self._children[token]

    @property
    def mask(self) -> Bool[np.ndarray, " vocab"]:
        mask = self._mask
        if mask is None:
            mask = self._mask = as_array(self.state.allowed())
        return mask


class Branches:
    """The states of a constraint below the text so far.

    Args:
        constraint: on the answer; the prompt is free.
        prompt: tokens of the prompt.
    """

    def __init__(self, constraint: Constraint, prompt: int) -> None:
        self._newest = _Branch(constraint.start())
        self._length = prompt  # tokens of prompt and answer that it has read

    def keep(self, tokens: Sequence[int]) -> None:
        """Go on from a text that is longer by these tokens.

        Raises:
            ValueError: for a token that the constraint forbids.
        """
        for token in tokens:
            branch = self._newest.child(token)
            if branch is None:
                raise ValueError(
                    f"the text holds token {token}, and its grammar does not go on from there: it"
                    " is too ambiguous for the parser, or a verifier accepted what has no"
                    " probability"
                )
            self._newest = branch
            self._length += 1

    def mask(self, context: Context) -> Bool[np.ndarray, " vocab"] | None:
        """The tokens that may come after these; None behind a forbidden one."""
        branch = self._newest
        for token in context.tokens[self._length :]:
            below = branch.child(token)
            if below is None:
                return None
            branch = below
        return branch.mask

    def fit(self, tree: DraftTree, max_draft_len: int) -> DraftTree:
        """A tree without forbidden nodes and what is below them, and with forced tokens.

        It has the same root. This changes no text where the target's own draws decide which nodes
        are accepted; trees whose siblings are verified by what they were drawn from must stay.

        Args:
            max_draft_len: most draft tokens in a row.
        """
        root = self._newest.child(tree.token_list[0])
        if root is None:
            return tree
        kept, forced = self._walk(tree, root, max_draft_len)
        if len(kept) == len(tree) and not any(forced.values()):
            return tree
        place = {node: n for n, node in enumerate(kept)}
        tokens = [tree.token_list[node] for node in kept]
        parents = [-1, *(place[tree.parent_list[node]] for node in kept[1:])]
        for leaf in sorted(forced):
            above = place[leaf]
            for token in forced[leaf]:
                tokens.append(token)
                parents.append(above)
                above = len(tokens) - 1
        sources = None
        if tree.sources is not None:
            more = len(tokens) - len(kept)
            sources = (*(tree.sources[node] for node in kept), *[(FORCED,)] * more)
        return DraftTree.of(tokens, parents, tree.draw, sources)

    def _walk(
        self, tree: DraftTree, root: _Branch, max_draft_len: int
    ) -> tuple[list[int], dict[int, Sequence[int]]]:
        """The nodes that are not forbidden, and what is forced below those that end up as leaves.

        It goes along one branch after the other, as states are read fastest in that order.
        """
        root.mask  # noqa: B018  every verifier reads it, and nothing was read below it yet
        depths = tree.depths.tolist()
        kept: list[int] = []
        forced: dict[int, Sequence[int]] = {}
        waiting = [(0, root)]
        while waiting:
            node, branch = waiting.pop()
            kept.append(node)
            below = [(child, branch.child(tree.token_list[child])) for child in tree.children[node]]
            allowed = [(child, longer) for child, longer in below if longer is not None]
            waiting += allowed[::-1]
            if not allowed:
                most = min(max_draft_len - depths[node], BELOW if node else AT_ROOT)
                forced[node] = branch.state.forced()[: max(most, 0)]
        return sorted(kept), forced


@dataclass(frozen=True, eq=False)
class Constrained:
    """A sampler for texts under a constraint; implements ``MaskedSampler``.

    Logits of forbidden tokens become minus infinity before anything else is done to them, so that
    top-k, top-p and min-p choose among allowed tokens, and the distribution is that of the other
    options renormalised.

    Args:
        unmasked: what is done to the logits after that.
        branches: of the request's text.
        drafting: whether rows are drawn from for drafts. They may lie behind a forbidden token or
            where a grammar has no way on; no text gets there, so these rows stay as they are.
    """

    unmasked: Sampler
    branches: Branches
    drafting: bool = False

    @property
    def greedy(self) -> bool:
        return self.unmasked.greedy

    @property
    def reads_context(self) -> bool:
        return True

    def for_drafting(self) -> "Constrained":
        return replace(self, unmasked=self.unmasked.for_drafting(), drafting=True)

    def allowed(self, context: Context) -> Bool[np.ndarray, " vocab"] | None:
        mask = self.branches.mask(context)
        return None if mask is None or (self.drafting and not mask.any()) else mask

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]:
        masks = [self.allowed(context) for context in contexts]
        if len(masks) != len(logits):
            raise ValueError(
                f"a constraint needs the tokens before each row, got {len(masks)} for"
                f" {len(logits)} rows"
            )
        rows = [_masked(row, mask) for row, mask in zip(as_array(logits), masks, strict=True)]
        masked = rows[0][None] if len(rows) == 1 else np.stack(rows)
        return self.unmasked.probs(masked, contexts if self.unmasked.reads_context else ())


def _masked(
    logits: Float[np.ndarray, " vocab"], mask: Bool[np.ndarray, " vocab"] | None
) -> Float[np.ndarray, " vocab"]:
    """Minus infinity for what is forbidden; logits as they are where anything goes."""
    return logits if mask is None else np.where(mask, logits, logits.dtype.type(-np.inf))


def constrained(
    options: Options, constraint: Constraint, target: Model, prompt: int
) -> tuple[Options, Branches]:
    """The options of a request whose sampler and end of text mind the constraint, and its states.

    Raises:
        ValueError: for a constraint of another vocabulary.
    """
    if constraint.vocab_size != target.vocab_size:
        raise ValueError(
            f"the grammar masks {constraint.vocab_size} tokens and the model has"
            f" {target.vocab_size}; compile the grammar for this model"
        )
    branches = Branches(constraint, prompt)
    sampler = Constrained(options.sampler, branches)
    ends = options.stop_tokens | constraint.end_tokens
    return replace(options, sampler=sampler, stop_tokens=ends), branches
