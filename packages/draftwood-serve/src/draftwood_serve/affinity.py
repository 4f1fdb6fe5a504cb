"""Choose the replica for a request: one that knows its beginning, unless that one is busier."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from draftwood_serve.settings import CHOICES

BLOCK = 128  # characters; caches keep blocks of 32 tokens
MOST_BLOCKS = 256  # of a prompt that are compared
REMEMBERED = 2**16  # beginnings


@dataclass(eq=False)
class ReplicaLoad:
    """Load of a replica, as the router counts it.

    Attributes:
        name: number that no other replica has or had.
        open: texts of its running and waiting requests.
        served: requests that it was sent in all.
    """

    name: int
    open: int = 0
    served: int = 0


class Affinity:
    """Send requests that begin alike to the same replica, whose cache holds their beginning.

    The longest known beginning decides. If the replica that knows it has more open texts than the
    least busy one, by more than a margin, the least busy one takes over.

    Args:
        margin: in texts.
    """

    def __init__(self, margin: int) -> None:
        self.margin = margin
        self.known: OrderedDict[bytes, int] = OrderedDict()  # the name of the newest replica

    def choose(self, beginnings: Sequence[bytes], loads: Sequence[ReplicaLoad]) -> ReplicaLoad:
        """Choose a replica for a request.

        Args:
            beginnings: of the request, shortest first.
            loads: of replicas that run; at least one.
        """
        chosen = min(loads, key=lambda load: (load.open, load.served))
        by_name = {load.name: load for load in loads}
        for beginning in reversed(beginnings):
            known = by_name.get(self.known.get(beginning, -1))
            if known is not None:
                if known.open <= chosen.open + self.margin:
                    chosen = known
                break
        return chosen

    def remember(self, beginnings: Sequence[bytes], load: ReplicaLoad) -> None:
        """Remember that a replica knows these beginnings, as it has read the request."""
        for beginning in beginnings:
            self.known[beginning] = load.name
            self.known.move_to_end(beginning)
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)


BEFORE = ("model", "tools", "instructions", "system")
"""Fields that tell what a model reads before the prompt, and which model does."""
INFILL = ("input_extra", "input_prefix")
"""Fields of `/infill` before the prompt."""


def fields_of(body: bytes) -> dict[str, Any]:
    """Fields of a request; none where it cannot be read."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def texts_of(fields: Mapping[str, Any]) -> int:
    """Count the texts that a request asks for: each takes a place in the batch."""
    prompts, n = fields.get("prompt", fields.get("input")), fields.get("n")
    several = isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list)
    each = n if isinstance(n, int) and 0 < n <= CHOICES else 1
    return each * len(prompts) if several else each


def beginnings_of(owner: str, fields: Mapping[str, Any]) -> list[bytes]:
    """Digests of all beginnings of a request's prompt, shortest first, in whole blocks.

    Requests of different owners share no cache, so theirs differ.
    """
    digest, found = blake2b(owner.encode(), digest_size=16), list[bytes]()
    prompt = _prompt_of(fields)
    for block in range(min(len(prompt) // BLOCK, MOST_BLOCKS)):
        digest.update(prompt[block * BLOCK : (block + 1) * BLOCK].encode())
        found.append(digest.copy().digest())
    return found


def _prompt_of(fields: Mapping[str, Any]) -> str:
    """Prompt of a request in the order in which a model reads it."""
    before = [fields[name] for name in BEFORE if name in fields]
    prompt = [fields[name] for name in (*INFILL, "messages", "prompt", "input") if name in fields]
    return json.dumps([*before, *prompt], sort_keys=True)
