"""Watch the steps of a text, and copy what its head reads anyway."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from draftwood.arrays import as_array, to_bfloat16
from draftwood.drafters.drafter import DraftSession, Reads, VerifiedTree
from draftwood.learning.idle import IdleGate
from draftwood.learning.texts import WatchedText
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.sampling import Context
from draftwood.tree import DraftTree

PROMPT_ROWS = 32
"""Newest rows of a prompt that are kept; as many as ``auto``'s head takes in."""
LEAST_ROWS = 4
"""Rows of an answer below which a text is passed over."""


@dataclass(frozen=True, eq=False)
class _StepRows:
    """Rows of a step on its accepted path.

    Attributes:
        rejected: whether all drafts behind the last accepted node were rejected, or the step had
            none; False where the path ended at a leaf.
    """

    tokens: Sequence[int]
    states: np.ndarray
    final: np.ndarray
    rejected: bool


@dataclass(frozen=True, eq=False)
class _TextRows:
    """Rows of a text so far; each change is one act, so that an interrupt leaves them whole.

    Attributes:
        tokens: of the prompt, and its states; None where it was not run.
        steps: of the answer.
    """

    tokens: Sequence[int] = ()
    states: np.ndarray | None = None
    steps: list[_StepRows] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Watch:
    """Hand-over of one text's rows.

    Attributes:
        layers: of the target that the head reads.
        final: number of the state behind the final norm.
        temperature: of the text's draws.
        take: called once with the rows, when the text has ended.
        gate: entered as long as the text goes on.
    """

    layers: tuple[int, ...]
    final: int
    temperature: float
    take: Callable[[WatchedText], None]
    gate: IdleGate


class WatchedSession(DraftSession):
    """A drafter's session of one text that another one watches.

    It drafts and learns as before. Of each step the rows on the accepted path are copied.

    Args:
        inner: that drafts.
        watch: takes the rows.
    """

    def __init__(self, inner: DraftSession, watch: Watch) -> None:
        self.inner, self.watch = inner, watch
        self._rows, self._in_answer = _TextRows(), False
        watch.gate.enter()
        self._leave = weakref.finalize(self, watch.gate.leave)
        self._leave.atexit = False

    @property
    def reads(self) -> Reads:
        inner = self.inner.reads
        return Reads(inner.logits, self._hidden(inner.hidden))

    @property
    def needs_prompt(self) -> bool:
        return self.inner.needs_prompt

    @property
    def branching(self) -> Any:
        return self.inner.branching

    def propose(self, root: int, context: Context) -> DraftTree:
        self._in_answer = True
        return self.inner.propose(root, context)

    def native(self, context: Context) -> NativeDraft | None:
        self._in_answer = True
        draft = self.inner.native(context)
        return None if draft is None else replace(draft, hidden=self._hidden(draft.hidden))

    def update(self, verified: VerifiedTree) -> None:
        self.inner.update(verified)
        hidden = {} if verified.output is None else verified.output.hidden
        if self._in_answer:
            self._take_step(verified.tokens, verified.path, verified.tree.parent_list, hidden)
        else:
            self._take_prompt(verified.tokens, hidden)

    def commit_native(self, step: NativeStep) -> DraftTree:
        return self.inner.commit_native(step)

    def observe(self, step: NativeStep, hidden: Mapping[int, Any]) -> None:
        tokens = [step.tokens[node] for node in step.path]
        self._take_step(tokens, step.path, step.parents, hidden)

    def follow(self, first: DraftSession) -> None:
        self.inner.follow(first.inner if isinstance(first, WatchedSession) else first)

    def close(self) -> None:
        """End the inner session, and hand the rows over."""
        try:
            self.inner.close()
        finally:
            rows, self._rows = self._rows, _TextRows()
            try:
                if sum(len(step.tokens) for step in rows.steps) >= LEAST_ROWS:
                    self.watch.take(_text_of(rows, self.watch))
            finally:
                self._leave()

    def _hidden(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Layers that are asked for: the head's, and in an answer the final state."""
        more = (*self.watch.layers, self.watch.final) if self._in_answer else ()
        return tuple(dict.fromkeys([*asked, *more]))

    def _take_prompt(self, tokens: Sequence[int], hidden: Mapping[int, Any]) -> None:
        layers = self.watch.layers
        if any(layer not in hidden for layer in layers):  # nothing was computed
            self._rows = _TextRows()
            return
        newest = slice(max(0, len(tokens) - PROMPT_ROWS), len(tokens))
        states = np.stack([as_array(hidden[layer])[newest] for layer in layers], axis=1)
        rows = self._rows
        known = states if rows.states is None else np.concatenate([rows.states, states])
        self._rows = _TextRows([*rows.tokens, *tokens][-PROMPT_ROWS:], known[-PROMPT_ROWS:])

    def _take_step(
        self,
        tokens: Sequence[int],
        path: Sequence[int],
        parents: Sequence[int],
        hidden: Mapping[int, Any],
    ) -> None:
        watch, nodes = self.watch, list(path)
        if any(layer not in hidden for layer in (*watch.layers, watch.final)):
            self._rows = _TextRows()
            return
        rejected = len(parents) == 1 or nodes[-1] in parents
        states = np.stack([as_array(hidden[layer])[nodes] for layer in watch.layers], axis=1)
        final = as_array(hidden[watch.final])[nodes]
        self._rows.steps.append(_StepRows(list(tokens), states, final, rejected))


def _text_of(rows: _TextRows, watch: Watch) -> WatchedText:
    steps, answer = rows.steps, len(rows.tokens)
    tokens = np.array([*rows.tokens, *(each for step in steps for each in step.tokens)], np.int64)
    before = [] if rows.states is None else [rows.states]
    states = to_bfloat16(np.concatenate([*before, *(step.states for step in steps)]))
    known = to_bfloat16(np.concatenate([step.final for step in steps]))
    final = np.zeros((len(tokens), known.shape[1]), np.uint16)
    final[answer:] = known
    rejected = np.zeros(len(tokens), bool)
    ends = answer + np.cumsum([len(step.tokens) for step in steps])
    rejected[ends - 1] = [step.rejected for step in steps]
    return WatchedText(tokens, states, final, rejected, answer, watch.temperature)
