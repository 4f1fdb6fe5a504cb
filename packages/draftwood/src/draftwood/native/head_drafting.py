"""Trees that a trained head drafts alone in C++, for whole steps; see head_drafting.h."""

import math
from collections.abc import Mapping, Sequence
from ctypes import addressof, byref, c_int32

from draftwood.native import library
from draftwood.native.drafting import Costs
from draftwood.native.head_session import HeadSession
from draftwood.native.structures import CHeadDraftingSettings


class HeadDrafting:
    """The likeliest nodes of a head's trees, and what the head learns of each pass.

    The rows of the session so far stay; from now on the library takes in what follows.

    Args:
        session: whose ranks are the children of a node.
        layers: of the target, whose inputs the head reads.
        nodes: of a tree, without its root.
        depth: most levels.
        width: most nodes of a level that are read.
        floor: least probability of the path to a node that is read.
    """

    def __init__(
        self,
        session: HeadSession,
        layers: Sequence[int],
        nodes: int,
        depth: int,
        width: int,
        floor: float = 0.0,
    ) -> None:
        self._library, self._layers = library.library(), tuple(layers)
        numbers = (c_int32 * len(layers))(*layers)
        settings = CHeadDraftingSettings(
            session=session.handle,
            found=addressof(session.found),
            layers=addressof(numbers),
            width=session.head.width,
            reads=len(layers),
            nodes=nodes,
            depth=depth,
            level_width=width,
            least_log_prob=math.log(floor) if floor else -math.inf,
        )
        self.handle = self._library.draftwood_head_drafting_new(byref(settings))
        free = self._library.draftwood_head_drafting_free
        library.freed_with(self, free, self.handle, kept=session)
        self.levels: int = self._library.draftwood_head_levels(self.handle)
        self.costs = Costs([0.0] * (1 + nodes), [0.0] * (1 + nodes))

    def learn(self, tokens: Sequence[int], states: Mapping[int, int]) -> None:
        """Take note of tokens that became text, and of the target's states at them.

        Args:
            states: by layer the address of [tokens hidden] in float32.
        """
        layers = range(1 + max(self._layers, default=-1))
        addresses = library.integers([states.get(layer, 0) for layer in layers])
        self._library.draftwood_head_drafting_learn(
            self.handle, library.integers(tokens), len(tokens), addresses
        )
