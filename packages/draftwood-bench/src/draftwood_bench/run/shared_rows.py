"""Rows behind texts that go on one prompt: each text is run once, whoever asks for it.

Texts of many configurations begin alike, the more so the colder they are drawn. Caches are branches
of a trie: a text goes on in the branch that has most of it, or in a copy of its beginning.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood.arrays import as_array
from draftwood.models.cached import CachedModel
from draftwood.models.model import ModelSession, PromptInput, extend_in_chunks
from draftwood.together import wait

MOST_BYTES = 1 << 30
"""Bytes of rows to keep; those that were not asked for longest go first."""
MOST_BRANCHES = 128
"""Number of caches to keep."""

Text = tuple[int, ...]
"""Tokens behind the prompt."""
States = Mapping[int, Any]
"""Hidden states by layer, each [dim]."""


@dataclass(eq=False)
class Branch:
    """A cache.

    Attributes:
        session: holds the prompt and the text.
        text: behind the prompt.
    """

    session: ModelSession
    text: Text


class SharedRows:
    """Logits after texts behind one prompt.

    Args:
        model: whose rows these are; tokens that it lacks are for the caller to replace.
        prompt: token ids, which are run when the first row is asked for.
        first: whether its passes run before those of other models for which calls wait.
        hidden: layers whose states are wanted.

    Attributes:
        states: by text, of all that were run.
    """

    def __init__(
        self,
        model: CachedModel,
        prompt: Sequence[int],
        first: bool = True,
        hidden: Sequence[int] = (),
    ) -> None:
        self.model, self.prompt, self.first = model, list(prompt), first
        self.hidden = tuple(hidden)
        self.states: dict[Text, States] = {}
        # of both the one that was used last is the last
        self._rows: OrderedDict[Text, np.ndarray] = OrderedDict()
        self._branches: OrderedDict[int, Branch] = OrderedDict()  # number 0 holds the prompt alone

    def after(self, text: Sequence[int]) -> Float[np.ndarray, "1 vocab"]:
        """Logits [1 vocab] of the token that comes after a text, which has a token at least.

        Raises:
            ValueError: for an empty text.
        """
        if not text:
            raise ValueError("a row is asked for behind a token at least")
        (row,) = wait(self, [tuple(text)], self._serve, self.first)
        return row.copy()  # some are changed by who reads them

    def close(self) -> None:
        """Give the caches back."""
        for branch in self._branches.values():
            branch.session.close()
        self._branches.clear()
        self._rows.clear()

    def _serve(self, texts: Sequence[Text]) -> list[np.ndarray]:
        """Rows of texts; those that are not known are run in one pass."""
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        found = {text: self._rows[text] for text in texts if text in self._rows}
        if new:
            found |= dict(zip(new, self._run(new), strict=True))
        for text, row in found.items():
            self._rows[text] = row
            self._rows.move_to_end(text)
        width = next(iter(found.values())).nbytes
        while len(self._rows) * width > MOST_BYTES:
            self._rows.popitem(last=False)
        return [found[text] for text in texts]

    def _run(self, texts: Sequence[Text]) -> list[np.ndarray]:
        busy = set[int]()
        branches = [self._branch_for(text, busy) for text in texts]
        inputs = [
            PromptInput(each.session, text[len(each.text) :], "last", self.hidden)
            for each, text in zip(branches, texts, strict=True)
        ]
        outputs = self.model.forward(inputs)
        for branch, text, output in zip(branches, texts, outputs, strict=True):
            known, branch.text = len(branch.text), text
            for place in range(known, len(text) if self.hidden else known):
                at = {layer: as_array(output.hidden[layer])[place - known] for layer in self.hidden}
                self.states[text[: place + 1]] = at
        return [output.rows.copy() for output in outputs]  # of a pass they are one array

    def _branch_for(self, text: Text, busy: set[int]) -> Branch:
        """A cache that holds a beginning of a text, and is not yet of this pass.

        Args:
            busy: numbers of those that are, to which this adds it.
        """
        self._begin()
        shared = {
            number: _shared(branch.text, text[:-1]) for number, branch in self._branches.items()
        }
        best = max(shared, key=lambda number: shared[number])
        source, known = self._branches[best], shared[best]
        if best and best not in busy and known == len(source.text):  # goes on where that ends
            number, branch = best, source
        else:
            number, session = self._free({*busy, best})
            source.session.fork(session, len(self.prompt) + known)
            branch = self._branches[number] = Branch(session, text[:known])
        self._branches.move_to_end(number)
        busy.add(number)
        return branch

    def _begin(self) -> None:
        """Run the prompt, behind which all branches go on."""
        if not self._branches:
            session = self.model.start()
            extend_in_chunks(session, self.prompt)
            self._branches[0] = Branch(session, ())

    def _free(self, busy: set[int]) -> tuple[int, ModelSession]:
        """An empty cache: a new one, or the one that was not used longest."""
        if len(self._branches) < max(MOST_BRANCHES, len(busy) + 2):
            return len(self._branches), self.model.start()
        number = next(each for each in self._branches if each and each not in busy)
        branch = self._branches[number]
        branch.session.clear()
        return number, branch.session


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    both = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
