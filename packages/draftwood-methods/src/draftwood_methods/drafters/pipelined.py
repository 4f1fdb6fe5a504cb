"""Begin the tokens that may come next while the newest one is still under way."""

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.overlap import SideThread
from draftwood.drafters.resources import Resources
from draftwood.models.model import Layers
from draftwood.models.session import PooledSession
from draftwood.native.rows import topk
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive
from draftwood_methods.begun import BegunTokens
from draftwood_methods.exit_passes import ExitPasses, require_exits
from draftwood_methods.exits import Exits, exits_for

CANDIDATES = 3


@dataclass(frozen=True, eq=False)
class Pipelined(Drafter):
    """The first layers run the likeliest next tokens while the other layers run the newest one.

    Predictive pipelined decoding (PPD, Yang et al. 2023, arXiv:2307.05908): before layer d of L
    the model says what may follow, and these tokens begin beside the pass under way, on a thread of
    their own. If the next token is one of them, only its layers from d on are left. With a share p
    of right candidates a token costs 1 - p (1 - d / L) of its passes where d is at least half of L.
    Nothing is drafted: each pass gives one token, the target's own.

    Differs from the paper: one thread runs all candidates at once, no further than to layer d, and
    names none from there on; states go through a fitted map, as in ``EarlyExit``. Models that
    cannot make two passes at once run the candidates before the rest of the newest token.

    Args:
        layer: d, before which next tokens are begun.
        candidates: tokens that begin.
        exits: the maps; without one for the layer its states go through norm and head alone.
        threads: of the candidates; the pass under way has the others.

    Raises:
        ValueError: for a number of candidates or threads below 1.

    Example:
        The text is 1 2 3 4 5, the model has 12 layers, and d is 6. Behind six layers 5 says 6 or 8.
        While layers 7 to 12 run 5, layers 1 to 6 run 6 and 8 in another thread. The target says 6
        after 5: 6 goes on with layers 7 to 12 at once, while 7 and 9 begin behind it. Had it said
        7, layers 1 to 12 would run 7.
    """

    name: ClassVar[str] = "pipelined"
    needs = frozenset({"layers"})
    uses = frozenset({"stored"})
    layer: int
    candidates: int = CANDIDATES
    exits: Exits | None = None
    threads: int = 1
    side: SideThread = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive("candidates and threads", (self.candidates, self.threads))
        object.__setattr__(self, "side", SideThread(self.threads))

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        target = resources.target
        require_exits(target, cls.name)
        return cls(target.layers // 2, exits=exits_for(resources))

    def start(self, request: DraftRequest) -> DraftSession:
        require_exits(request.target.model, self.name, self.layer)
        return _PipelinedSession(self, request)


class _PipelinedSession(DraftSession):
    def __init__(self, drafter: Pipelined, request: DraftRequest) -> None:
        assert isinstance(request.target, PooledSession)  # it can stop between layers
        self.drafter, self.target = drafter, request.target
        self.passes = ExitPasses(request, drafter.exits, 1)
        self.under_way: BegunTokens | None = None
        self.placed: BegunTokens | None = None  # behind the text
        self.entered_in = drafter.side.enter()
        # tokens that a mask forces are run behind the root, where candidates would lie
        self.is_masked = request.mask is not None

    def propose(self, root: int, context: Context) -> DraftTree:
        tree = DraftTree.of([root], [-1])
        self._end()
        begun, self.placed = self.placed, None
        state = None if begun is None else begun.go_on(root)
        if context.max_draft_len > 0 and not self.is_masked:
            side, layer = self.drafter.side, self.drafter.layer
            if state is None:
                state = self.passes.run(tree, 0, Layers(stop=layer)).hidden[layer]
            self.under_way = BegunTokens(self.target, side, root, self._likeliest(state), layer)
        return tree

    def _likeliest(self, state: Any) -> list[int]:
        """Likeliest tokens after a state [1 dim]."""
        logits = self.passes.logits(self.drafter.layer, state)
        return topk(logits, min(self.drafter.candidates, logits.shape[1]))[0].tolist()

    def update(self, verified: VerifiedTree) -> None:
        self.placed, self.under_way = self.under_way, None
        if self.placed is not None:
            self.placed.place()

    def close(self) -> None:
        self._end()
        self.drafter.side.leave(self.entered_in)

    def _end(self) -> None:
        """Wait for candidates that nobody asked for, as after a pass that failed."""
        begun, self.under_way = self.under_way, None
        if begun is not None and self.entered_in == os.getpid():
            begun.wait()
