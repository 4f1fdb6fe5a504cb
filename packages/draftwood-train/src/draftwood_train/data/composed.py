"""Compose prompts from words: everyday requests to a chat model, on many topics.

Public sets of questions cover arithmetic, code and passages, which most requests are not.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

COUNT = 20_000
"""Prompts in the set; the frames allow many more."""


@cache
def parts() -> dict[str, Any]:
    """``frames`` with slots in braces, and ``words`` by slot."""
    file = resources.files("draftwood_train.data").joinpath("composed.json")
    return json.loads(file.read_text(encoding="utf-8"))


def composed(seed: int) -> Iterator[str]:
    """``COUNT`` different prompts, the same for the same seed."""
    rng, seen = random.Random(f"composed {seed}"), set[str]()
    while len(seen) < COUNT:
        text = _filled(rng.choice(parts()["frames"]), rng)
        if text not in seen:
            seen.add(text)
            yield text


def _filled(frame: str, rng: random.Random) -> str:
    words = parts()["words"]
    name, other = rng.sample(words["name"], 2)
    count, small = rng.randrange(12, 60), rng.randrange(2, 12)
    drawn = {"name": name, "other": other, "count": str(count), "small": str(small)}

    def word(slot: re.Match[str]) -> str:
        return drawn.get(slot[1]) or rng.choice(words[slot[1]])

    text = re.sub(r"\{(\w+)\}", word, frame)
    return text[0].upper() + text[1:]
