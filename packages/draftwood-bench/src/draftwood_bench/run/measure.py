"""Measure units of work: what is measured at one moment is recorded together or not at all."""

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict

from draftwood.sampling import Sampling
from draftwood.stats import Stats
from draftwood.verifiers import Match
from draftwood_bench.peers.lineup import Peer
from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.units import Key, Unit
from draftwood_bench.records.files import Record
from draftwood_bench.run.identity import distribution_test
from draftwood_bench.run.quality import quality, score
from draftwood_bench.run.recording import identity, record
from draftwood_bench.run.workbench import Answer, Workbench


def measure(
    bench: Workbench,
    unit: Unit,
    peers: Sequence[Peer] = (),
    worker: str = "local",
    done: Container[Key] = frozenset(),
) -> list[Record]:
    """Measure a unit; yield its records, except existing ones."""
    if unit.kind == "turns":
        return _in_turns(bench, unit, peers, worker, done)
    if unit.kind == "thrifty":
        return _lazily(bench, unit, worker)
    from draftwood_bench.run.load import under_load

    return under_load(bench, unit, worker)


def _in_turns(
    bench: Workbench, unit: Unit, peers: Sequence[Peer], worker: str, done: Container[Key]
) -> list[Record]:
    """Let all configurations and peers answer a turn before the next one.

    Their order changes from turn to turn. Plain decoding's answer is the history of the next turn
    for all, so that all see the same prompts. A peer that missed its turn runs beside plain
    decoding once more, and its record holds that time.
    """
    (number, prompt), found, said = unit.prompts[0], [], []
    limit = bench.room
    for turn in range(len(prompt.turns)):
        tokens = bench.encode(prompt, said)
        if limit is not None and len(tokens) > limit:
            break  # the rule says so: the first turn fits, or the prompt would not be here
        seed = unit.seed(bench.settings.seed, number, turn)
        asked = [peer for peer in peers if unit.key(peer.key, turn) not in done]
        lineup: list[Configuration | Peer] = [*unit.cells, *asked]
        random.Random(f"{prompt.id} {turn} {unit.round} {unit.temperature}").shuffle(lineup)
        answers: dict[str, Answer] = {}
        others: dict[str, dict] = {}
        for each in lineup:
            if isinstance(each, Configuration):
                answers[each.key] = bench.answer(each, tokens, unit.temperature, seed)
            else:
                others[each.key] = each.answer(tokens, unit.key(each.key, turn))
        plain = answers[Configuration(PLAIN).key]
        late = unit.key(Configuration(PLAIN).key, turn) in done
        for cell in () if late else unit.cells:
            more = _judged(
                bench, cell, unit, number, prompt, turn, tokens, answers[cell.key], plain
            )
            found.append(
                record(bench, cell, unit, number, prompt, turn, tokens, worker=worker, **more)
            )
        for fields in others.values():
            if fields:  # a peer that failed has none
                if late:
                    once_more = {
                        "stats": plain.stats.as_json(),
                        "seconds_end_to_end": round(plain.seconds, 6),
                    }
                    fields = {**fields, "beside": once_more}
                found.append(
                    _peer_record(bench, unit, number, prompt, turn, tokens, fields, plain.token_ids)
                )
        said.append(plain.text)
    # a unit whose first turn is recorded counts as whole, so that its lines come last
    return sorted(found, key=lambda made: made.turn == 0)


def _judged(
    bench: Workbench,
    cell: Configuration,
    unit: Unit,
    number: int,
    prompt: Prompt,
    turn: int,
    tokens: Sequence[int],
    answer: Answer,
    plain: Answer,
) -> dict:
    """Compute the parts of a record that need no timing, after all answers have been timed."""
    settings, greedy = bench.settings, unit.temperature == 0.0
    stats, first = answer.stats.as_json(), turn == 0 and unit.round == 0
    drafts = cell.method != PLAIN
    if first and drafts and unit.place < settings.bound_prompts:
        stats |= bench.bound(cell, tokens, unit.temperature, unit.seed(settings.seed, number))
    law = None
    tested = drafts and not greedy and cell.rule != Match()
    if first and tested and unit.place < settings.law_prompts:
        method, sampling = bench.using(cell).method, Sampling(unit.temperature)
        # each sample has a seed of its own, which no other prompt's has
        seed = max(1_000, settings.law_samples) * (1 + unit.seed(settings.seed, number))
        args = (
            bench.plain.model,
            method,
            sampling,
            tokens,
            plain.token_ids,
            settings.law_samples,
            seed,
        )
        found = distribution_test(*args, exact=settings.exact)
        law = None if found is None else asdict(found)
    return {
        "token_ids": answer.token_ids,
        "text": answer.text,
        "stats": stats,
        "seconds_end_to_end": round(answer.seconds, 6),
        "law": law,
        "quality": quality(prompt, answer.text, bench.plain.model, tokens, answer.token_ids)
        if turn == 0
        else None,
        **(
            identity(bench, bench.plain.model, tokens, plain.token_ids, answer.token_ids)
            if greedy
            else {}
        ),
    }


def _peer_record(
    bench: Workbench,
    unit: Unit,
    number: int,
    prompt: Prompt,
    turn: int,
    tokens: Sequence[int],
    fields: Mapping,
    plain: Sequence[int],
) -> Record:
    """A peer's record.

    A text that differs is reported, not judged, since a peer rounds in its own way.
    """
    same = list(fields["token_ids"]) == list(plain)
    made = record(
        bench, Configuration(PLAIN), unit, number, prompt, turn, tokens, drafter=None, verifier=None
    )
    known = {
        **asdict(made),
        "lossless": True,
        "identical_to_plain": same,
        "text": bench.text(fields["token_ids"]),
    }
    return Record(**{**known, **fields})


def _lazily(bench: Workbench, unit: Unit, worker: str) -> list[Record]:
    """All configurations on a prompt, in shared passes; stats without seconds."""
    ((number, prompt),) = unit.prompts
    tokens, seed = bench.encode(prompt), unit.seed(bench.settings.seed, number)
    plain: list[int] | None = None
    if unit.temperature == 0.0:
        (steps,) = bench.together([Configuration(PLAIN)], tokens, 0.0, seed)
        plain = bench.tokens_of(steps)
    found = []
    texts = bench.together(unit.cells, tokens, unit.temperature, seed)
    for cell, steps in zip(unit.cells, texts, strict=True):
        token_ids = bench.tokens_of(steps)
        text = bench.text(token_ids)
        same: dict = {}
        if plain is not None:
            same = identity(bench, bench.plain.model, tokens, plain, token_ids)
        more = {
            "token_ids": token_ids,
            "text": text,
            "stats": {**Stats.of(steps).as_json(), "seconds": None, "tokens_per_second": None},
            "quality": score(prompt, text),
            "worker": worker,
            **same,
        }
        found.append(record(bench, cell, unit, number, prompt, 0, tokens, **more))
    return found
