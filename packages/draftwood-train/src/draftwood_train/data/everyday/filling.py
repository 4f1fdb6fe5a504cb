"""Fill the slots of frames with words and names."""

import json
import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

from draftwood_train.data.everyday.material import Item, Material, Pool, divided

Draw = Callable[[], str]
_SLOT = re.compile(r"\{([\w ]+)\}")
FRAMES = 1 / 6
"""Share of the frames of each task that is held out."""
COLOURS = ("red", "green", "blue", "black", "yellow", "orange")


@cache
def frames() -> Mapping[str, Pool[str]]:
    """Wordings by task, divided."""
    file = resources.files("draftwood_train.data.everyday").joinpath("frames.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    return {name: divided(f"frames {name}", found[name], share=FRAMES) for name in found}


class Filler:
    """Filler of frames from the words of one split.

    Args:
        rng: draws all words; each slot is drawn anew wherever it stands.
    """

    def __init__(self, material: Material, held_out: bool, rng: random.Random) -> None:
        self.material, self.held_out, self.rng = material, held_out, rng
        self._drawn: dict[str, str] = {}
        if material.pairs:
            one, two = self.of(material.pairs)
            self._drawn |= {"one": one, "two": two, "pair": f"{one} and {two}"}
        for name, low, high in (("count", 12, 60), ("small", 2, 12), ("small2", 2, 12)):
            self._drawn[name] = str(rng.randrange(low, high))

    def of(self, pool: Pool[Item]) -> Item:
        """An item of the split."""
        return self.rng.choice(pool.of(self.held_out))

    def frame(self, name: str, fits: bool = True) -> str:
        """A wording of a task, of those whose slots can be filled."""
        pool = frames()[name].of(self.held_out)
        return self.rng.choice([each for each in pool if not fits or self._fits(each)])

    def filled(self, frame: str, **given: str) -> str:
        text = _SLOT.sub(lambda slot: given.get(slot[1]) or self._word(slot[1]), frame)
        return text[:1].upper() + text[1:] if frame[:1] in "{" else text

    def _fits(self, frame: str) -> bool:
        return all(self._source(slot) is not None for slot in _SLOT.findall(frame))

    def _source(self, slot: str) -> Draw | None:
        """Draw of a slot; None where the mix goes without its source."""
        article, _, rest = slot.rpartition(" ")
        own: dict[str, Draw] = {
            "sentence": lambda: self.of(self.material.english),
            "broken sentence": lambda: broken(self.of(self.material.english), self.rng),
            "Word": lambda: self._word("object").title().replace(" ", ""),
            "word": lambda: self._word("object").replace(" ", "_"),
            "colour": lambda: self.rng.choice(COLOURS),
            "other": lambda: self._word("name"),
        }
        if slot in self._drawn:
            return lambda: self._drawn[slot]
        if slot in own:
            needs = self.material.english if "sentence" in slot else self.material.words.get("name")
            return own[slot] if needs else None
        pool = self.material.words.get(rest)
        if not pool:
            return None
        if article in ("a", "another"):
            prefix = (lambda word: f"another {word}") if article == "another" else with_article
            return lambda: prefix(self.of(pool))
        return lambda: self.of(pool)

    def _word(self, slot: str) -> str:
        draw = self._source(slot)
        return slot if draw is None else draw()


def with_article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def broken(sentence: str, rng: random.Random) -> str:
    """A sentence with two words in the wrong order and one twice or missing."""
    words = sentence.rstrip(".").split()
    place = rng.randrange(len(words) - 1)
    words[place : place + 2] = words[place + 1 : place - 1 if place else None : -1]
    other = rng.randrange(len(words))
    words[other : other + 1] = [words[other]] * (2 * rng.randrange(2))
    return " ".join(words)
