"""Units of work: what is measured at one moment, and so compared, is recorded together or not at all."""

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from draftwood.bench.cells import PLAIN, Cell
from draftwood.bench.prompts import Prompt
from draftwood.bench.proof import divergence, law_test
from draftwood.bench.quality import quality
from draftwood.bench.records import Key, Record
from draftwood.bench.workbench import Answer, Workbench
from draftwood.models.base import Model
from draftwood.sampling import Sampling
from draftwood.stats import Stats
from draftwood.verifiers import Match

Kind = Literal["turns", "thrifty", "load"]


@dataclass(frozen=True)
class Unit:
    """One piece of a run.

    Attributes:
        kind: ``turns``: every cell on one prompt, in turns; ``thrifty``: one cell on all prompts in shared runs, not
            timed; ``load``: one cell on all prompts, several at once.
        cells: what is measured.
        prompts: on what, each with its number in the set.
        temperature: 0 is greedy.
        round: from 0.
    """

    kind: Kind
    cells: tuple[Cell, ...]
    prompts: tuple[tuple[int, Prompt], ...]
    temperature: float
    round: int

    @property
    def keys(self) -> list[Key]:
        """Of the first turns; the others are recorded with them."""
        return [
            (cell.key, self.temperature, prompt.id, 0, self.round) for cell in self.cells for _, prompt in self.prompts
        ]

    def key(self, cell: str, turn: int = 0) -> Key:
        """Of a cell's record of a turn of the first prompt."""
        return (cell, self.temperature, self.prompts[0][1].id, turn, self.round)

    def lacks(self, cell: str, done: Container[Key]) -> bool:
        """Whether a cell has not answered the first prompt, with all turns that plain decoding has answered."""
        turns = range(len(self.prompts[0][1].turns))
        answered = [turn for turn in turns if self.key(Cell(PLAIN).key, turn) in done]
        return any(self.key(cell, turn) not in done for turn in answered or [0])

    def seed(self, base: int, number: int, turn: int = 0) -> int:
        """The seed of a request: the same for every cell."""
        return base + number + 10_000 * self.round + 1_000_000 * turn


class Rival(Protocol):
    """Another system that answers the same prompts; ``answer`` gives the fields in which a key's record differs."""

    @property
    def key(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    def answer(self, tokens: Sequence[int], key: Key) -> dict: ...


def measure(
    bench: Workbench,
    unit: Unit,
    rivals: Sequence[Rival] = (),
    worker: str = "local",
    done: Container[Key] = frozenset(),
) -> list[Record]:
    """The records of a unit, but for those that are done."""
    if unit.kind == "turns":
        return _in_turns(bench, unit, rivals, worker, done)
    if unit.kind == "thrifty":
        return _thrifty(bench, unit, worker)
    from draftwood.bench.load import under_load

    return under_load(bench, unit, worker)


def record(
    bench: Workbench, cell: Cell, unit: Unit, number: int, prompt: Prompt, turn: int, tokens: Sequence[int], **more
) -> Record:
    """A record with everything that the cell and the unit say."""
    fields: dict = {
        "stats": {},
        "seconds_end_to_end": None,
        "token_ids": None,
        "text": None,
        "shape": None if cell.tree is None else repr(cell.tree),
        "nodes": None if cell.tree is None else cell.tree.nodes,
        "draft_steps": cell.draft_steps,
        "verifier": cell.rule.name,
        "drafter": cell.drafts_with,
    }
    return Record(
        cell=cell.key,
        method=cell.method,
        at=cell.at,
        lossless=cell.lossless,
        category=prompt.category,
        prompt=prompt.id,
        turn=turn,
        round=unit.round,
        seed=unit.seed(bench.settings.seed, number, turn),
        temperature=unit.temperature,
        prompt_tokens=len(tokens),
        **{**fields, **more},
    )


def identity(bench: Workbench, model: Model, tokens: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> dict:
    """Whether a greedy text is plain decoding's, as fields of a record."""
    found = divergence(model, tokens, plain, other, bench.dtype)
    return {"identical_to_plain": found is None, "divergence": None if found is None else asdict(found)}


def _in_turns(bench: Workbench, unit: Unit, rivals: Sequence[Rival], worker: str, done: Container[Key]) -> list[Record]:
    """All cells and rivals answer a turn before the next one is asked, in an order that changes from turn to turn.

    What plain decoding answered is the history of the next turn for all, so that all see the same prompts. A rival that
    missed its turn is asked beside plain decoding once more, and its record holds what that took.
    """
    (number, prompt), found, said = unit.prompts[0], [], []
    limit = bench.room
    for turn in range(len(prompt.turns)):
        tokens = bench.encode(prompt, said)
        if limit is not None and len(tokens) > limit:
            break  # the rule says so: the first turn fits, or the prompt would not be here
        seed = unit.seed(bench.settings.seed, number, turn)
        asked = [rival for rival in rivals if unit.key(rival.key, turn) not in done]
        entrants: list[Cell | Rival] = [*unit.cells, *asked]
        random.Random(f"{prompt.id} {turn} {unit.round} {unit.temperature}").shuffle(entrants)
        answers: dict[str, Answer] = {}
        others: dict[str, dict] = {}
        for entrant in entrants:
            if isinstance(entrant, Cell):
                answers[entrant.key] = bench.answer(entrant, tokens, unit.temperature, seed)
            else:
                others[entrant.key] = entrant.answer(tokens, unit.key(entrant.key, turn))
        plain = answers[Cell(PLAIN).key]
        late = unit.key(Cell(PLAIN).key, turn) in done
        for cell in () if late else unit.cells:
            more = _judged(bench, cell, unit, number, prompt, turn, tokens, answers[cell.key], plain)
            found.append(record(bench, cell, unit, number, prompt, turn, tokens, worker=worker, **more))
        for fields in others.values():
            if fields:  # a peer that failed has none
                if late:
                    once_more = {"stats": plain.stats.as_json(), "seconds_end_to_end": round(plain.seconds, 6)}
                    fields = {**fields, "beside": once_more}
                found.append(_rival_record(bench, unit, number, prompt, turn, tokens, fields, plain.token_ids))
        said.append(plain.text)
    return found


def _judged(
    bench: Workbench,
    cell: Cell,
    unit: Unit,
    number: int,
    prompt: Prompt,
    turn: int,
    tokens: Sequence[int],
    answer: Answer,
    plain: Answer,
) -> dict:
    """What is said of an answer once all have been timed."""
    settings, greedy = bench.settings, unit.temperature == 0.0
    stats, first = answer.stats.as_json(), turn == 0 and unit.round == 0
    drafts = cell.method != PLAIN
    if first and drafts and number < settings.bound_prompts:
        stats |= bench.bound(cell, tokens, unit.temperature, unit.seed(settings.seed, number))
    law = None
    if first and drafts and not greedy and number < settings.law_prompts and cell.rule != Match():
        method, sampling = bench.using(cell).method, Sampling(unit.temperature)
        seed = 1_000 * (1 + unit.seed(settings.seed, number))
        args = (bench.plain.model, method, sampling, tokens, plain.token_ids, settings.law_samples, seed)
        tested = law_test(*args, exact=settings.exact)
        law = None if tested is None else asdict(tested)
    return {
        "token_ids": answer.token_ids,
        "text": answer.text,
        "stats": stats,
        "seconds_end_to_end": round(answer.seconds, 6),
        "law": law,
        "quality": quality(prompt, answer.text, bench.plain.model, tokens, answer.token_ids) if turn == 0 else None,
        **(identity(bench, bench.plain.model, tokens, plain.token_ids, answer.token_ids) if greedy else {}),
    }


def _rival_record(
    bench: Workbench,
    unit: Unit,
    number: int,
    prompt: Prompt,
    turn: int,
    tokens: Sequence[int],
    fields: Mapping,
    plain: Sequence[int],
) -> Record:
    """A peer's record; a text that differs is told, not judged, for a peer rounds in its own way."""
    same = list(fields["token_ids"]) == list(plain)
    made = record(bench, Cell(PLAIN), unit, number, prompt, turn, tokens, drafter=None, verifier=None)
    known = {**asdict(made), "lossless": True, "identical_to_plain": same, "text": bench.text(fields["token_ids"])}
    return Record(**{**known, **fields})


def _thrifty(bench: Workbench, unit: Unit, worker: str) -> list[Record]:
    """One cell on all prompts, in shared runs; stats without seconds."""
    (cell,) = unit.cells
    prompts = [bench.encode(prompt) for _, prompt in unit.prompts]
    seeds = [unit.seed(bench.settings.seed, number) for number, _ in unit.prompts]
    plain: list[list[int]] = []
    if unit.temperature == 0.0:
        plain = [bench.tokens_of(steps) for steps in bench.together(Cell(PLAIN), prompts, 0.0, seeds)]
    found = []
    for place, steps in enumerate(bench.together(cell, prompts, unit.temperature, seeds)):
        number, prompt = unit.prompts[place]
        token_ids = bench.tokens_of(steps)
        stats = {**Stats.of(steps).as_json(), "seconds": None, "tokens_per_second": None}
        same = {}
        if plain:
            same = identity(bench, bench.plain.model, prompts[place], plain[place], token_ids)
        more = {"token_ids": token_ids, "text": bench.text(token_ids), "stats": stats, "worker": worker, **same}
        found.append(record(bench, cell, unit, number, prompt, 0, prompts[place], **more))
    return found
