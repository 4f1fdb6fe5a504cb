"""Draft with several drafters in one tree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.prompt_lookup import PromptLookup
from draftwood.drafters.resources import Resources
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.tree import DraftTree, Draw
from draftwood_methods.drafters.stand import Stand


@dataclass(frozen=True, eq=False)
class MergedDrafters(Drafter):
    """The trees of several drafters as one: what several propose is in it once. For matching.

    SpecInfer's merge of small models (Miao et al. 2024, arXiv:2305.09781).

    Differs from the paper: any drafters, not models alone, and none is trained for what the others
    miss.

    Args:
        drafters: what proposes; of siblings those of earlier drafters come first.

    Raises:
        ValueError: without drafters.

    Example:
        A draft model says 3 4, a copy 3 1; the tree holds 3 once.

        >>> near = DraftModel(writing([1, 2, 3, 4]), Widths((1, 1)))
        >>> drafter = MergedDrafters((near, PromptLookup(length=2)))
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 4], [3, 1]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "merged"
    needs = DraftModel.needs
    uses = frozenset({"shape"})
    drafters: tuple[Drafter, ...]

    def __post_init__(self) -> None:
        if not self.drafters:
            raise ValueError(f"{self.name} needs at least one drafter, got none")

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls((DraftModel.build(resources), PromptLookup()))

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"chosen", "coupled"})

    @property
    def most_nodes(self) -> int:
        return sum(each.most_nodes for each in self.drafters)

    def start(self, request: DraftRequest) -> DraftSession:
        return _MergedSession(self, request)

    def join(self, root: int, trees: Sequence[DraftTree]) -> DraftTree:
        """One tree of several with the same root."""
        union = _Union(root)
        for drafter, tree in zip(self.drafters, trees, strict=True):
            union.add(tree, drafter.name)
        draw: Draw = "coupled" if any(tree.draw == "coupled" for tree in trees) else "chosen"
        return DraftTree.of(union.tokens, union.parents, draw, tuple(map(tuple, union.names)))


@dataclass(frozen=True, eq=False)
class MergedDrawn(MergedDrafters):
    """The same for rejection: each node names the row that it was drawn from.

    SpecInfer's multi-step rejection tests the children of all drafters in turn, each against its
    own drafter's distribution. That two drew the same token is part of the chance, so both stay in
    the tree, as nodes of their own that verifiers treat as one place in the text.

    Raises:
        ValueError: for drafters whose siblings are not drawn from known rows.

    Example:
        A draft model and tables both draw 3 after 2: both nodes stay, each with the row it came
        from.

        >>> drafter = MergedDrawn((DraftModel(writing([1, 2, 3]), Widths((1,))), Stand(1, width=1)))
        >>> one_step(drafter, writing([1, 2, 3, 4]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3], [3]], accepted=[3], then=4)
    """

    name: ClassVar[str] = "merged-drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        for drafter in self.drafters:
            if not drafter.draws <= {"distinct", "independent"}:
                raise ValueError(
                    f"{self.name} needs drafters whose siblings are distinct or independent draws,"
                    f" those of {drafter.name} are {' or '.join(sorted(drafter.draws))}; merge"
                    " them for matching, or give it another shape"
                )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls((DraftModel.build(resources), Stand(nodes=4, width=1)))

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"named"})

    def join(self, root: int, trees: Sequence[DraftTree]) -> DraftTree:
        tokens, parents, drawn_from, sources = [root], [-1], [0], [()]
        rows: list[Float[np.ndarray, "_ vocab"]] = []
        count = 0  # of rows so far
        for drafter, tree in zip(self.drafters, trees, strict=True):
            if tree.probs is None:
                continue
            above = len(tokens) - 1  # what is added to the number of a node that is not the root
            places, more = _rows_of(tree)
            tokens += tree.token_list[1:]
            parents += [parent + above if parent else 0 for parent in tree.parent_list[1:]]
            drawn_from += [count + place for place in places[1:]]
            sources += [(drafter.name,)] * (len(tree) - 1)
            rows += [tree.probs, *(row[None] for row in more)]
            count += len(tree.probs) + len(more)
        if len(tokens) == 1:
            return DraftTree.of(tokens, parents, "named")
        return DraftTree(
            np.array(tokens),
            np.array(parents),
            np.concatenate(rows),
            "named",
            tuple(sources),
            drawn_from=np.array(drawn_from),
        )


def _rows_of(tree: DraftTree) -> tuple[list[int], list[Float[np.ndarray, " vocab"]]]:
    """For each node the row that it was drawn from, and rows beyond those of the tree.

    Siblings drawn without replacement have rows of their own: without those drawn before.
    """
    assert tree.probs is not None
    places = [max(parent, 0) for parent in tree.parent_list]
    more: list[Float[np.ndarray, " vocab"]] = []
    for node, children in enumerate(tree.children) if tree.draw == "distinct" else ():
        for earlier, child in enumerate(children[1:], 1):
            rest = tree.probs[node].copy()
            rest[[tree.token_list[each] for each in children[:earlier]]] = 0.0
            places[child] = len(tree.probs) + len(more)
            more.append(rest / max(rest.sum(), rest.dtype.type(1e-30)))
    return places, more


class _Union:
    """A tree in which no two children of a node hold the same token, and who proposed its nodes."""

    def __init__(self, root: int) -> None:
        self.tokens, self.parents = [root], [-1]
        self.names: list[list[str]] = [[]]
        self.children: dict[tuple[int, int], int] = {}

    def add(self, tree: DraftTree, name: str) -> None:
        place = [0]
        for token, parent in list(zip(tree.token_list, tree.parent_list, strict=True))[1:]:
            above = place[parent]
            if (above, token) not in self.children:
                self.children[above, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.names.append([])
            place.append(self.children[above, token])
            if name not in self.names[place[-1]]:
                self.names[place[-1]].append(name)


class _MergedSession(DraftSession):
    def __init__(self, config: MergedDrafters, request: DraftRequest) -> None:
        self.config = config
        self.sessions = [drafter.start(request) for drafter in config.drafters]

    @property
    def reads(self) -> Reads:
        every = [session.reads for session in self.sessions]
        hidden = sorted({layer for reads in every for layer in reads.hidden})
        return Reads(any(reads.logits for reads in every), tuple(hidden))

    @property
    def needs_prompt(self) -> bool:
        return any(session.needs_prompt for session in self.sessions)

    def follow(self, first: DraftSession) -> None:
        assert isinstance(first, _MergedSession)
        for own, other in zip(self.sessions, first.sessions, strict=True):
            own.follow(other)

    def propose(self, root: int, context: Context) -> DraftTree:
        trees = list(self._proposed(root, context))
        tree = self.config.join(root, trees)
        return replace(tree, is_broken=True) if any(each.is_broken for each in trees) else tree

    def _proposed(self, root: int, context: Context) -> Iterator[DraftTree]:
        for session in self.sessions:
            tree = session.propose(root, context)
            yield (
                tree.truncated(context.max_draft_len) if len(tree) > context.max_draft_len else tree
            )

    def update(self, verified: VerifiedTree) -> None:
        for session in self.sessions:
            session.update(verified)

    def close(self) -> None:
        for session in self.sessions:
            session.close()
