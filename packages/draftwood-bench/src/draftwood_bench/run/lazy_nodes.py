"""Measure block efficiency cheaply: run only nodes that are read, for many texts per pass.

The engine, the drafters and the verifiers are the library's own. A node is run when its
distribution is asked for, so a rule that walks from the root costs as much as plain decoding, and
one that starts at the leaves what it looks at. The texts under way share one pass, and what several
of them begin with is run once. The texts are those of ordinary decoding; times mean nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from draftwood import engine
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
from draftwood.models.session import PooledModel, PooledSession
from draftwood.models.shared import SharedPasses
from draftwood.shapes import Shape
from draftwood.stats import Step
from draftwood.together import results_together
from draftwood.tree import DraftTree
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.run.lazy_drafts import LazyDraftModel
from draftwood_bench.run.shared_rows import SharedRows

TOGETHER = 48
"""Texts under way at once; more hold memory, and their rows cost no less."""

_TREE = DraftTree.of([0], [-1])


def decode_together(
    drafters: "Drafters",
    cells: Sequence[Configuration],
    prompt: Sequence[int],
    options: Options,
    whole_trees: bool = False,
) -> list[list[Step]]:
    """Decode a prompt by several configurations; return the steps of each, untimed.

    Args:
        drafters: on a draft model or a head of the target, whose texts they are.
        cells: shapes and verifiers; plain decoding has no shape and drafts nothing.
        prompt: token ids.
        options: of every text.
        whole_trees: draft and run every node of every tree, and the prompt for every text.
    """
    model = SharedPasses(drafters.target, first=False) if whole_trees else drafters.lazily(prompt)
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
        self._lazily: tuple[list[int], LazyNodes] | None = None  # of the newest prompt
        self._rows: SharedRows | None = None  # of the draft model, likewise

    def of(self, cell: Configuration, lazily: bool) -> Drafter:
        """The drafter of a configuration.

        Args:
            lazily: a draft model runs what is read of a tree alone.
        """
        key = cell.tree, lazily
        if key not in self._made:
            self._made[key] = self._make(cell, lazily)
        return self._made[key]

    def _make(self, cell: Configuration, lazily: bool) -> Drafter:
        if cell.tree is None or self.base is None:
            head = self.draft if isinstance(self.draft, TrainedHead) else None
            return cell.drafts_with.build(Resources(self.target, head=head, shape=cell.tree))
        model = self.base.model
        made = DraftModel(model, cell.tree)
        if lazily:
            made = LazyDraftModel(model, cell.tree, rows_behind=self.rows_behind)
        vars(made)["drafting"] = self.base.drafting  # sessions are copied within one model alone
        return made

    def lazily(self, prompt: Sequence[int]) -> "LazyNodes":
        """The target for texts behind a prompt; what the one before has run is forgotten."""
        if self._lazily is None or self._lazily[0] != list(prompt):
            if self._lazily is not None:
                self._lazily[1].close()
            self._lazily = list(prompt), LazyNodes(self.target, prompt)
        return self._lazily[1]

    def rows_behind(self, prompt: Sequence[int]) -> SharedRows:
        """Rows of the draft model behind a prompt, likewise."""
        if self._rows is None or self._rows.prompt != list(prompt):
            if self._rows is not None:
                self._rows.close()
            assert self.base is not None  # it asks
            model: Any = self.base.drafting.model  # rounded as it drafts
            self._rows = SharedRows(model.inner, prompt)
        return self._rows


class LazyNodes(SharedPasses):
    """Target that runs a node when its distribution is read, and a prompt once.

    Its one ability is to give hidden states.

    Args:
        inner: runs.
        prompt: behind which all texts go on.
    """

    def __init__(self, inner: CachedModel, prompt: Sequence[int]) -> None:
        super().__init__(inner, first=False)
        self.abilities = inner.abilities & {"hidden"}
        self.prompt = list(prompt)
        self._prompts: dict[PromptKey, tuple[PooledSession, ModelOutput]] = {}
        self._rows: dict[tuple[int, ...], SharedRows] = {}

    def start(self) -> PooledSession:
        return LazySession(self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Give the caches back."""
        for known, _ in self._prompts.values():
            known.close()
        for rows in self._rows.values():
            rows.close()

    def rows(self, hidden: Sequence[int]) -> SharedRows:
        """Rows behind the prompt, with the states of these layers."""
        key = tuple(hidden)
        if key not in self._rows:
            self._rows[key] = SharedRows(self.inner, self.prompt, first=False, hidden=key)
        return self._rows[key]

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
    """One sequence, whose cache holds the prompt; what it reads behind that lies elsewhere.

    Attributes:
        text: tokens behind the prompt.
    """

    def __init__(self, model: PooledModel) -> None:
        super().__init__(model)
        self.text: list[int] = []

    @property
    def length(self) -> int:
        return self._length + len(self.text)

    def read(self, tree: DraftTree, hidden: Sequence[int] = ()) -> ModelOutput:
        """The logits and states of this tree, which are not computed yet."""
        rows: SharedRows = self.model.rows(hidden)  # type: ignore[attr-defined]
        self.newest = RowsOnDemand(rows, self.text, tree)
        return ModelOutput(self.newest, self.newest.hidden)  # type: ignore[arg-type]

    def commit(self, path: Sequence[int]) -> None:
        self.text += self.newest.tokens_of(path)

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> PooledSession:
        raise ValueError(
            "a session that runs nodes when they are read cannot be forked, as its cache holds the"
            " prompt alone; fork a session of the model itself"
        )


class RowsOnDemand:
    """Logits by node; reading one runs it, and the nodes above it that were not run.

    Args:
        rows: of the model, behind the prompt.
        text: tokens before the tree.

    Attributes:
        hidden: states of the nodes that were run.
    """

    def __init__(self, rows: SharedRows, text: Sequence[int], tree: DraftTree) -> None:
        self.rows, self.text, self.tree = rows, list(text), tree
        self.hidden = _StatesOnDemand(self)

    def __len__(self) -> int:
        return len(self.tree)

    def __getitem__(self, nodes: slice) -> np.ndarray:
        return self.rows.after(self.text_to(nodes.start))

    def text_to(self, node: int) -> list[int]:
        """The tokens up to a node."""
        return [*self.text, *self.tokens_of([0, *self.tree.path_to(node)])]

    def tokens_of(self, path: Sequence[int]) -> list[int]:
        """The tokens of nodes."""
        return [self.tree.token_list[node] for node in path]


class _StatesOnDemand(Mapping[int, np.ndarray]):
    """Hidden states by layer; rows of nodes that nobody ran are 0."""

    def __init__(self, nodes: RowsOnDemand) -> None:
        self.nodes = nodes

    def __getitem__(self, layer: int) -> np.ndarray:
        nodes = self.nodes
        if layer not in nodes.rows.hidden:
            raise KeyError(layer)
        texts = (tuple(nodes.text_to(node)) for node in range(len(nodes)))
        found = [nodes.rows.states.get(text) for text in texts]
        rows = [None if each is None else each[layer] for each in found]
        (one, *_) = [row for row in rows if row is not None]  # the root always is
        return np.stack([np.zeros_like(one) if row is None else row for row in rows])

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes.rows.hidden)

    def __len__(self) -> int:
        return len(self.nodes.rows.hidden)
