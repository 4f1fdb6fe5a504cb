"""Figures of draftwood's server that one client alone can see, each measured once per round."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import draftwood
from benchmarks.serving.load import Answer, at_once, beside_prefill, body_of
from benchmarks.serving.servers import BATCH, Server
from draftwood.costs.curve import measure
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import WIKITEXT, load_text

Messages = list[dict[str, str]]
SHORT = 400  # characters of a prompt: it is decoding that is measured
TOKENS = 128
MANY_TOKENS = 384  # of each of sixteen texts, so that all of them are written at once for a while
ONE_BY_ONE = 6  # prompts of a round for one stream
CURVE_SIZES, CURVE_LENGTH = (1, 2, 4, 8, BATCH), 256
CACHED, LONG = 1000, 4000  # tokens of a prompt
STREAMS, STREAMED = 4, 2000  # beside a long prompt, and most tokens of each
REPEATS = 5


@dataclass(frozen=True)
class Bench:
    """A warm server, and the same model in this process.

    Attributes:
        prompts: short ones.
        text: tokens of a long running text.
    """

    server: Server
    lm: LanguageModel
    prompts: Sequence[Prompt]
    text: Sequence[int]

    @classmethod
    def of(cls, model: str, server: Server, prompts: Sequence[Prompt]) -> "Bench":
        lm = draftwood.load(model)
        short = [prompt for prompt in prompts if len(prompt.turns[0]) <= SHORT]
        text = lm.tokenizer(load_text(WIKITEXT)[:2_000_000])["input_ids"]
        return cls(server, lm, short, text)

    def own_prompts(self, turn: int, first: int, count: int) -> list[Messages]:
        """Messages that no other round asks for, from a place of a round's prompts."""
        start = turn * (ONE_BY_ONE + 2 * BATCH + STREAMS) + first
        found = [self.prompts[(start + number) % len(self.prompts)] for number in range(count)]
        return [prompt.messages(()) for prompt in found]

    def passage(self, number: int, tokens: int) -> Messages:
        """A message of about so many tokens, another one for each number."""
        since = number * LONG
        part = [self.text[(since + place) % len(self.text)] for place in range(tokens)]
        return [{"role": "user", "content": str(self.lm.tokenizer.decode(part))}]

    def ask(self, messages: Messages, tokens: int, **more: Any) -> Answer:
        with self.server.awake() as address:
            return at_once(address, [endless(messages, tokens, **more)])[0]


def endless(messages: Messages, tokens: int, **more: Any) -> dict[str, Any]:
    """A request that goes on after the model's end of text."""
    return body_of(messages, tokens, ignore_eos=True, **more)


def one_stream(bench: Bench, turn: int) -> dict[str, Any]:
    """Whole requests, one after the other, beside ``generate`` in this process, in turns."""
    spent = {"server": [0, 0.0], "in process": [0, 0.0]}
    for number, messages in enumerate(bench.own_prompts(turn, 0, ONE_BY_ONE)):
        for way in ("server", "in process")[:: -1 if number % 2 else 1]:
            if way == "server":
                found = bench.ask(messages, TOKENS)
                tokens, seconds = found.chunks[-1][1], found.end - found.sent
            else:
                since = time.perf_counter()
                made = bench.lm.generate(messages, max_new_tokens=TOKENS, ignore_eos=True)
                tokens, seconds = len(made.token_ids), time.perf_counter() - since
            spent[way][0] += tokens
            spent[way][1] += seconds
    server, own = (tokens / seconds for tokens, seconds in spent.values())
    return {
        "server_tokens_per_second": round(server, 1),
        "in_process_tokens_per_second": round(own, 1),
        "ratio": round(server / own, 3),
    }


def sixteen_streams(bench: Bench, turn: int) -> dict[str, Any]:
    """Sixteen texts at once, while all are written, beside 16/T(16), measured just before.

    T(16) is measured behind 256 tokens, about where the texts are.
    """
    return _sixteen(bench, turn, [], CURVE_LENGTH)


def sixteen_sharing(bench: Bench, turn: int) -> dict[str, Any]:
    """The same where all texts begin with the same 1,000 tokens."""
    shared = bench.passage(4000 + turn, CACHED)
    return _sixteen(bench, turn, shared, CURVE_LENGTH + CACHED)


def _sixteen(bench: Bench, turn: int, shared: Messages, behind: int) -> dict[str, Any]:
    curve = measure(bench.lm.model, CURVE_SIZES, behind, seconds=6.0)
    most, found = BATCH / curve(BATCH), {}
    shared = [{**each, "role": "system"} for each in shared]
    for place, (name, more) in enumerate((("auto", {}), ("plain", {"speculative": False}))):
        asked = bench.own_prompts(turn, ONE_BY_ONE + place * BATCH, BATCH)
        bodies = [endless([*shared, *messages], MANY_TOKENS, **more) for messages in asked]
        if shared:
            bench.ask(bodies[0]["messages"], 1)  # what is known is not read sixteen times
        with bench.server.awake() as address:
            answers = at_once(address, bodies)
        begin, end = max(each.chunks[0][0] for each in answers), min(each.end for each in answers)
        if end <= begin:
            raise OSError("one text ended before another began: they were never written at once")
        tokens = sum(each.tokens_until(end) - each.tokens_until(begin) for each in answers)
        rate = tokens / (end - begin)
        found[f"{name}_tokens_per_second"] = round(rate, 1)
        found[f"{name}_ratio"] = round(rate / most, 3)
    milliseconds = {f"T{size}_ms": round(1000 * curve(size), 2) for size in CURVE_SIZES}
    return {"16/T(16)": round(most, 1), **milliseconds, **found}


def cached_prompt(bench: Bench, turn: int) -> dict[str, Any]:
    """First token of a prompt of 1,000 tokens, new and once more."""
    new, again, lengths = [], [], []
    for number in range(REPEATS):
        messages = bench.passage(1000 * turn + number, CACHED)
        new.append(bench.ask(messages, 8).first_ms)
        answer = bench.ask(messages, 8)
        again.append(answer.first_ms)
        lengths.append(answer.prompt_tokens)
    return {
        "prompt_tokens": round(median(lengths)),
        "new_first_token_ms": round(median(new), 1),
        "cached_first_token_ms": round(median(again), 1),
        "worst_cached_first_token_ms": round(max(again), 1),
    }


def cached_beside_streams(bench: Bench, turn: int) -> dict[str, Any]:
    """First token of a known prompt of 1,000 tokens beside four streams, and alone."""
    asked = bench.own_prompts(turn, ONE_BY_ONE + 2 * BATCH, STREAMS)
    bodies = [endless(messages, STREAMED, temperature=1.0) for messages in asked]
    idle, busy = [], []
    for number in range(REPEATS):
        known = bench.passage(2000 + REPEATS * turn + number, CACHED)
        bench.ask(known, 8)
        idle.append(bench.ask(known, 8).first_ms)
        with bench.server.awake() as address:
            busy.append(beside_prefill(address, bodies, endless(known, 8))[1].first_ms)
    return {
        "idle_first_token_ms": round(median(idle), 1),
        "busy_first_token_ms": round(median(busy), 1),
        "ratio": round(median(busy) / median(idle), 2),
    }


def beside_long_prompt(bench: Bench, turn: int) -> dict[str, Any]:
    """Gaps between chunks of four streams while a prompt of 4,000 tokens is read."""
    asked = bench.own_prompts(turn, ONE_BY_ONE + 2 * BATCH, STREAMS)
    # drawn texts: greedy ones that repeat themselves would be copied to their ends at once
    bodies = [endless(messages, STREAMED, temperature=1.0) for messages in asked]
    with bench.server.awake() as address:
        long = endless(bench.passage(500 + turn, LONG), 8)
        found, answer = beside_prefill(address, bodies, long)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "first_token_ms": round(answer.first_ms, 1),
        "gaps": len(found),
        "median_gap_ms": round(median(found), 1),
        "p99_gap_ms": round(quantiles(found, n=100)[98], 1),
        "worst_gap_ms": round(max(found), 1),
        "share_under_80_ms": round(sum(gap < 80 for gap in found) / len(found), 4),
    }


FIGURES: dict[str, Callable[[Bench, int], dict[str, Any]]] = {
    "one-stream": one_stream,
    "sixteen-streams": sixteen_streams,
    "sixteen-sharing": sixteen_sharing,
    "cached-prompt": cached_prompt,
    "cached-beside-streams": cached_beside_streams,
    "beside-long-prompt": beside_long_prompt,
}
