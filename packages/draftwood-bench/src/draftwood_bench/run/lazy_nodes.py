"""Measure block efficiency cheaply: run only nodes that are read, for many texts per pass.

The engine, the drafters and the verifiers are the library's own. A node is run when its
distribution is asked for, so a rule that walks from the root costs as much as plain decoding, and
one that starts at the leaves what it looks at. The texts under way share one pass, and their prompt
is run once. The texts are those of ordinary decoding; times mean nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from draftwood import engine
from draftwood.arrays import as_array
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.drafter import Drafter, DraftSession
from draftwood.drafters.resources import Resources
from draftwood.engine import Options, run_all
from draftwood.heads.trained import TrainedHead
from draftwood.models.cached import CachedModel
from draftwood.models.model import (
    ForwardInput,
    ModelOutput,
    ModelSession,
    PromptInput,
)
from draftwood.models.session import PooledSession
from draftwood.models.shared import SharedPasses
from draftwood.shapes import Shape
from draftwood.stats import Step
from draftwood.together import results_together
from draftwood.tree import DraftTree
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.run.lazy_drafts import LazyDraftModel, PathInCache, text_of

TOGETHER = 48
"""Texts under way at once; more hold memory, and their rows cost no less."""

_TREE = DraftTree.of([0], [-1])

States = Mapping[int, Any]
"""Hidden states by layer, each [nodes dim]."""


def decode_together(
    target: CachedModel,
    drafters: "Drafters",
    cells: Sequence[Configuration],
    prompt: Sequence[int],
    options: Options,
    whole_trees: bool = False,
) -> list[list[Step]]:
    """Decode a prompt by several configurations; return the steps of each, untimed.

    Args:
        target: the model whose texts they are.
        drafters: on a draft model or a head of it.
        cells: shapes and verifiers; plain decoding has no shape and drafts nothing.
        prompt: token ids.
        options: of every text.
        whole_trees: draft and run every node of every tree, and the prompt for every text.
    """
    model = SharedPasses(target, first=False) if whole_trees else LazyNodes(target)
    texts = [
        engine.Sequence(model, drafters.of(cell, not whole_trees), cell.rule, prompt, options)
        for cell in cells
    ]
    drafted = next((each for each in cells if each.tree is not None), None)
    with torch.no_grad():
        first = None
        if drafted is not None and not whole_trees:
            drafter = drafters.of(drafted, lazily=False)
            first = engine.Sequence(model, drafter, drafted.rule, prompt, options)
            _begin(first)
        try:
            return _written(texts, None if first is None else first.draft)
        finally:
            if first is not None:
                first.close()


def _begin(text: engine.Sequence) -> None:
    """Run the prompt of a text, and let it draft once, so that others may copy its rows."""
    while text.root < 0:
        text.commit(text.target.forward(text.plan()), 0.0)
    text.plan()


def _written(texts: Sequence[engine.Sequence], first: DraftSession | None) -> list[list[Step]]:
    """Write the texts, so many at a time; the drafters' sessions copy the prompt from ``first``."""
    found: list[list[Step]] = [[] for _ in texts]
    waiting = iter(enumerate(texts))

    def write_some() -> None:
        for number, text in waiting:
            text.open()
            if first is not None:
                text.draft.follow(first)
            found[number] = [_to_keep(step) for _, step in run_all([text])]

    results_together([write_some] * min(TOGETHER, len(texts)))
    return found


def _to_keep(step: Step) -> Step:
    """The step without its tree, whose rows take megabytes."""
    return step if step.tree is None else replace(step, tree=_TREE, path=())


class Drafters:
    """Drafters on one draft model or head, whose sessions may copy from each other.

    Args:
        target: the model whose texts they draft for.
        draft: another one, of the same vocabulary, or a trained head.
    """

    def __init__(self, target: CachedModel, draft: CachedModel | TrainedHead) -> None:
        self.target, self.draft = target, draft
        self.base = None if isinstance(draft, TrainedHead) else DraftModel(SharedPasses(draft))
        self._made: dict[tuple[Shape | None, bool], Drafter] = {}

    def of(self, cell: Configuration, lazily: bool) -> Drafter:
        """The drafter of a configuration.

        Args:
            lazily: a draft model runs what is read of a tree alone.
        """
        key = cell.tree, lazily
        if key not in self._made:
            self._made[key] = self._make(cell, LazyDraftModel if lazily else DraftModel)
        return self._made[key]

    def _make(self, cell: Configuration, kind: type[DraftModel]) -> Drafter:
        if cell.tree is None or self.base is None:
            head = self.draft if isinstance(self.draft, TrainedHead) else None
            return cell.drafts_with.build(Resources(self.target, head=head, shape=cell.tree))
        made = kind(self.base.model, cell.tree)
        vars(made)["drafting"] = self.base.drafting  # sessions are copied within one model alone
        return made


class LazyNodes(SharedPasses):
    """Target that runs a node when its distribution is read, and a prompt once.

    Its one ability is to give hidden states.
    """

    def __init__(self, inner: CachedModel) -> None:
        super().__init__(inner, first=False)
        self.abilities = inner.abilities & {"hidden"}
        self._prompts: dict[PromptKey, tuple[PooledSession, ModelOutput]] = {}

    def start(self) -> PooledSession:
        return LazySession(self)  # type: ignore[arg-type]

    def forward(self, inputs: Sequence[engine.ModelInput]) -> list[ModelOutput]:
        trees = [each for each in inputs if isinstance(each, ForwardInput)]
        if len(trees) < len(inputs):
            return [self._appended(each) for each in inputs]
        return [each.session.read(each.tree, each.hidden) for each in trees]  # type: ignore[arg-type,attr-defined]

    def _appended(self, given: engine.ModelInput) -> ModelOutput:
        """Append tokens; the first ones of a text may have been run for another one."""
        assert isinstance(given, PromptInput)
        session = given.session
        assert isinstance(session, PooledSession)
        begins, key = session.length == 0, (tuple(given.tokens), given.keep, given.hidden)
        if begins and key in self._prompts:
            known, output = self._prompts[key]
            known.fork(session)
            return output
        (output,) = super().forward([given])
        if begins:
            known = PooledSession(self)  # type: ignore[arg-type]
            PooledSession.fork(session, known)
            self._prompts[key] = known, output
        return output


PromptKey = tuple[tuple[int, ...], str, tuple[int, ...]]
"""The tokens, and what was asked of them: logits, and hidden states by layer."""


class LazySession(PooledSession):
    """One sequence, whose cache holds the path that is being read."""

    def read(self, tree: DraftTree, hidden: Sequence[int] = ()) -> ModelOutput:
        """The logits and states of this tree, which are not computed yet."""
        self.rows = RowsOnDemand(self, tree, hidden)
        return ModelOutput(self.rows, self.rows.hidden)  # type: ignore[arg-type]

    def commit(self, path: Sequence[int]) -> None:
        self.rows.keep(path)

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> PooledSession:
        raise ValueError(
            "a session that runs nodes when they are read cannot be forked, as its cache holds the"
            " nodes that were read last; fork a session of the model itself"
        )


class RowsOnDemand:
    """Logits by node; reading one runs it.

    Missing nodes between it and the last path are run too.

    Args:
        layers: whose hidden states are wanted.

    Attributes:
        hidden: states of the nodes that were run.
    """

    def __init__(self, session: LazySession, tree: DraftTree, layers: Sequence[int] = ()) -> None:
        self.session, self.tree = session, tree
        self.path = PathInCache(session, tree)
        self.hidden = _StatesOnDemand(tree, layers)

    def __len__(self) -> int:
        return len(self.tree)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        wanted = [0, *self.tree.path_to(rows.start)]
        left = self.path.lead_to(wanted)
        output = self.session.extend(left, keep="last", hidden=self.hidden.layers)
        self.hidden.take(text_of(self.tree, wanted), len(wanted) - len(left), output.hidden)
        return output.logits

    def keep(self, path: Sequence[int]) -> None:
        """Drop all nodes that were read after this part of the path.

        Raises:
            ValueError: for nodes that were not read.
        """
        if self.path.shared_with(path) < len(path):
            raise ValueError(
                f"nodes {list(path)} were not all read; the last ones were {self.path.nodes}"
            )
        self.path.keep(path)


class _StatesOnDemand(Mapping[int, np.ndarray]):
    """Hidden states by layer; rows of nodes that nobody read are 0."""

    def __init__(self, tree: DraftTree, layers: Sequence[int]) -> None:
        self.tree, self.layers = tree, tuple(layers)
        self._known: dict[tuple[int, ...], tuple[States, int]] = {}  # by the tokens up to a node

    def take(self, text: Sequence[int], known: int, states: States) -> None:
        """Take note of nodes that were run: the last ones of a path."""
        for place in range(known, len(text) if self.layers else known):
            self._known[tuple(text[: place + 1])] = states, place - known

    def __getitem__(self, layer: int) -> np.ndarray:
        if layer not in self.layers:
            raise KeyError(layer)
        paths = ([0, *self.tree.path_to(node)] for node in range(len(self.tree)))
        found = [self._known.get(tuple(text_of(self.tree, path))) for path in paths]
        rows = [None if each is None else as_array(each[0][layer])[each[1]] for each in found]
        (one, *_) = [row for row in rows if row is not None]  # the root always is
        return np.stack([np.zeros_like(one) if row is None else row for row in rows])

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)
