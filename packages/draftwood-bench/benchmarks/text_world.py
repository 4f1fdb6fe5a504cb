"""TextWorld games for `plan_games`: made, walked through, and judged as a checker judges a plan."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwood_choices.search.checkers import Judgement

ROOMS, OBJECTS, QUEST = (3, 6), (4, 8), (4, 7)
"""Fewest and most of each."""
DIRECTIONS = ("north", "south", "east", "west")


@dataclass(frozen=True)
class Game:
    """A game as its goal and its walkthrough.

    Attributes:
        seed: that made it.
        objective: what the player is told.
        walkthrough: commands that win.
        scenes: what is seen before each command.
        names: of rooms and things.
    """

    seed: int
    objective: str
    walkthrough: list[str]
    scenes: list[str]
    names: list[str]

    def renamed(self, rng: random.Random, pool: Sequence[str]) -> "Game":
        """The same game with names of other games, so that a policy learns to read them."""
        some = [name for name in rng.sample(pool, 3 * len(self.names)) if name not in self.names]
        new = dict(zip(self.names, some, strict=False))
        longest = sorted(self.names, key=len, reverse=True)
        known = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest))})\b")

        def put(text: str) -> str:
            return known.sub(lambda found: new[found[0]], text)

        commands, scenes = [put(x) for x in self.walkthrough], [put(x) for x in self.scenes]
        return Game(self.seed, put(self.objective), commands, scenes, [new[x] for x in self.names])


def make(folder: Path, seeds: Sequence[int]) -> list[Game]:
    """Games of these seeds; those that are in the folder already are read."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_made(folder, seed) for seed in seeds]


def _made(folder: Path, seed: int) -> Game:
    import textworld

    record = folder / f"{seed}.record"
    if not record.is_file():
        rng, options = random.Random(seed), textworld.GameOptions()
        options.seeds = seed
        options.nb_rooms, options.nb_objects = rng.randint(*ROOMS), rng.randint(*OBJECTS)
        options.quest_length = rng.randint(*QUEST)
        game = textworld.generator.make_game(options)
        game.save(str(folder / f"{seed}.json"))
        walkthrough, scenes = list(game.metadata["walkthrough"]), list[str]()
        with World(folder / f"{seed}.json") as world:
            for command in walkthrough:
                scenes.append(world.scene)
                world.act(command)
        names = [str(each.name) for each in game.infos.values() if each.name and each.id != "P"]
        names = sorted({name for name in names if name not in ("player", "inventory")})
        told = Game(seed, " ".join(game.objective.split()), walkthrough, scenes, names)
        record.write_text(json.dumps(asdict(told)), encoding="utf-8")
    return Game(**json.loads(record.read_text(encoding="utf-8")))


class World:
    """A game that is played.

    Attributes:
        acted: commands that were given, those of games begun again too.
    """

    def __init__(self, file: Path) -> None:
        import textworld

        wanted = textworld.EnvInfos(admissible_commands=True, facts=True, won=True, lost=True)
        self._env: Any = textworld.start(str(file), wanted)
        self.acted, self._done = 0, list[str]()
        self._state: Any = self._env.reset()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()

    @property
    def won(self) -> bool:
        return bool(self._state.won)

    @property
    def ended(self) -> bool:
        return bool(self._state.won or self._state.lost)

    @property
    def scene(self) -> str:
        """Things seen in the room, and things carried."""
        return scene([(each.name, *each.names) for each in self._state.facts])

    def act(self, command: str) -> bool:
        """Give a command; False where the game does not admit it, and then nothing happens."""
        if self.ended or command not in self._state.admissible_commands:
            return False
        self._state, _, _ = self._env.step(command)
        self._done.append(command)
        self.acted += 1
        return True

    def __call__(self, answer: str) -> Judgement:
        """Judge commands from the beginning on, a line each, as ``plan-tree`` asks its checker."""
        *before, last = answer.split("\n")
        is_begun = True
        if before != self._done:
            self._state, self._done = self._env.reset(), []
            is_begun = all(self.act(command) for command in before)
        if not is_begun or not self.act(last):
            return Judgement(-1.0, self.scene)
        return Judgement(1.0 if self.won else 0.0, self.scene)


def scene(facts: Sequence[tuple[str, ...]]) -> str:
    """Say what the facts of a game let its player see."""
    (room,) = (each[2] for each in facts if each[:2] == ("at", "P"))
    state = {each[1]: each[0] for each in facts if each[0] in ("open", "closed", "locked")}
    here = [each[1] for each in facts if each[0] == "at" and each[2] == room and each[1] != "P"]
    things = list[str]()
    for thing in sorted(here):
        held = sorted(x[1] for x in facts if x[0] in ("on", "in") and x[2] == thing)
        notes = [state[thing]] if thing in state else []
        notes += held * (state.get(thing, "open") == "open")
        things.append(f"{thing} ({', '.join(notes)})" if notes else thing)
    carried = sorted(each[1] for each in facts if each[0] == "in" and each[2] == "I")
    exits = sorted(_exits(facts, room, state))
    return (
        f"{room}; here {', '.join(things) or 'nothing'}; exits {', '.join(exits)};"
        f" carried {', '.join(carried) or 'nothing'}"
    )


def _exits(facts: Sequence[tuple[str, ...]], room: str, state: dict[str, str]) -> Iterator[str]:
    doors = {each[3]: each[2] for each in facts if each[0] == "link" and each[1] == room}
    for each in facts:
        direction = each[0].removesuffix("_of")
        if direction in DIRECTIONS and each[2] == room:
            door = doors.get(each[1])
            yield direction if door is None else f"{direction} by {door} ({state[door]})"
