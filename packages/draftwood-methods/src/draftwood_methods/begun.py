"""Tokens that may come next, begun beside the pass of the newest one."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from draftwood.drafters.overlap import SideThread
from draftwood.models.cached import CachedModel
from draftwood.models.model import ForwardInput, Layers
from draftwood.models.session import PooledSession
from draftwood.tree import DraftTree


class BegunTokens:
    """A pass up to a layer over tokens that may follow a root which has stopped there.

    The root may go on meanwhile. A target that makes no two passes at once (``beside``) makes this
    one at once. It writes into the cache behind the root, so it must be over before the session is
    committed or closed.

    Args:
        target: whose newest pass was the root's.
        side: the thread of the pass.
    """

    def __init__(
        self,
        target: PooledSession,
        side: SideThread,
        root: int,
        tokens: Sequence[int],
        layer: int,
    ) -> None:
        self.target, self.tokens, self.layer = target, list(tokens), layer
        self.found: list[Any] = []  # states [tokens dim]
        self.placed: DraftTree | None = None
        self.future: Future[None] | None = None
        model = target.model
        assert isinstance(model, CachedModel)
        tree = DraftTree.of([root, *tokens], [-1, *[0] * len(tokens)])
        part = target.part(tree, 1, Layers(stop=layer))
        if "beside" not in model.abilities:
            self.found.append(model.run([part])[0].hidden[layer])
            return
        with model.pool.lock:
            model.pool.cover([part.place])

        def run() -> None:
            self.found.append(model.compute([part], (layer,))[0].hidden[layer])

        self.future = side.call_beside(run)

    def wait(self) -> BaseException | None:
        """Wait for the pass; gives what went wrong in it."""
        return None if self.future is None else self.future.exception()

    def place(self) -> None:
        """The root became text: its followers lie behind the text, and stopped before the layer.

        Raises:
            BaseException: as the pass did.
        """
        if (error := self.wait()) is not None:
            raise error
        # no path, but the tokens in the order of their places
        self.placed = DraftTree.of(self.tokens, [-1, *[0] * (len(self.tokens) - 1)])
        self.target.place_states(self.placed, self.found[0], Layers(start=self.layer))

    def go_on(self, token: int) -> Any:
        """Let one of the tokens go on as the text's newest; gives the state [1 dim] with which it
        stopped.

        None where the token is none of them, and where the cache was cleared since.
        """
        placed, target = self.placed, self.target
        if placed is None or token not in self.tokens:
            return None
        if target.exit_of(ForwardInput(target, placed)) != (self.layer, len(placed)):
            return None
        node = self.tokens.index(token)
        target.model.pool.keep(target.slot, target.length, [node])
        state = self.found[0][node : node + 1]
        target.place_states(DraftTree.of([token], [-1]), state, Layers(start=self.layer))
        return state
