"""Rows that a drafter hangs below the nodes of a tree: it reads them back, and the text stays."""

from typing import Any, ClassVar

import numpy as np
import pytest

from draftwood.drafters import Nothing
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import RowsInput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Context, Sampling
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
PROMPT, STOOD_IN = [5, 6, 7], 9


class Attaching(Drafter):
    """Hangs a token below each node, and drafts what is likeliest behind that."""

    name: ClassVar[str] = "attaching"

    def start(self, request: DraftRequest) -> DraftSession:
        return AttachingSession(request)


class AttachingSession(DraftSession):
    seen: ClassVar[list[tuple[list[int], np.ndarray]]] = []
    """Tokens of the text before a row that was read back, and the row."""

    def __init__(self, request: DraftRequest) -> None:
        self.session, self.text, self.guess = request.target, list[int](), list[int]()
        self.size = 0

    @property
    def reads(self) -> Reads:
        return Reads(logits=True)

    def propose(self, root: int, context: Context) -> DraftTree:
        return DraftTree.chain([root, *self.guess[: context.max_draft_len]])

    def attach(self, tree: DraftTree) -> RowsInput | None:
        self.size, positions = len(tree), self.session.length + tree.depths
        own = np.eye(self.size, dtype=bool)
        sees = np.block([[tree.ancestors, np.zeros_like(own)], [tree.ancestors, own]])
        tokens = [*tree.token_list, *[STOOD_IN] * self.size]
        return RowsInput(self.session, tokens, np.concatenate([positions, positions + 1]), sees)

    def update(self, verified: VerifiedTree) -> None:
        self.text += verified.tokens
        if not self.size:
            return  # the prompt
        assert len(verified.logits) == 2 * self.size
        row = verified.logits[self.size + verified.path[-1]]
        self.seen.append((list(self.text), row.copy()))
        self.guess = [int(row.argmax())]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_read_back_and_the_text_is_that_of_plain_decoding(temperature: float) -> None:
    model = NativeModel(tiny_llama(0))
    options = Options(Sampling(temperature), 30, seed=2)

    def text(drafter: Any) -> list[int]:
        steps = generate(model, drafter, Match(), PROMPT, options)
        return [token for step in steps for token in step.tokens]

    AttachingSession.seen.clear()
    assert text(Attaching()) == text(Nothing())
    assert len(AttachingSession.seen) > 10
    for before, row in AttachingSession.seen:
        session = model.start()
        assert np.array_equal(session.extend([*before, STOOD_IN], keep="last").rows[0], row)
        session.close()
