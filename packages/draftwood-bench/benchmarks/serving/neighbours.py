"""Speculation beside neighbours: tokens per second of 1 to 16 texts in one batch, in process.

    python -m benchmarks.serving.neighbours run               # decodes, round by round; resumable
    python -m benchmarks.serving.neighbours show              # the tables, in Markdown

`auto` knows what its neighbours do and drafts what pays beside them. It stands beside plain
decoding and beside itself where it is told of no neighbour, so that its trees are as large as
alone. Every text starts anew in every round; prompts are not timed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import draftwood
from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import parser_of
from benchmarks.serving.show import shown, spread
from draftwood.engine import Limits, Scheduler
from draftwood.engine.task import Event, StepBudget
from draftwood.sampling import NOTHING_SHARED
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.machine import processor
from draftwood_bench.report.table import Table

RECORDS = RESULTS / "serving" / "neighbours.jsonl"
NEW_TOKENS = 128
SHORT = 1200  # characters of a prompt


class AloneBatch(Scheduler):
    """A batch whose texts are not told of each other."""

    def _plan(self, budgets: Mapping[int, StepBudget]) -> list[Event]:
        return super()._plan(
            {number: replace(each, shared=NOTHING_SHARED) for number, each in budgets.items()}
        )


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison: a method in a kind of batch."""

    name: str
    method: str
    batch: type[Scheduler] = Scheduler


ARMS = (
    Arm("plain", "plain"),
    Arm("auto", "auto"),
    Arm("auto, trees as large as alone", "auto", AloneBatch),
)


def prompts_for(texts: int, turn: int) -> list[Any]:
    """As many prompts of Spec-Bench, other ones in each round."""
    found = [each.messages(()) for each in load_prompts("spec-bench").prompts]
    short = [messages for messages in found if len(messages[-1]["content"]) < SHORT]
    return [short[(turn * 97 + 13 * i) % len(short)] for i in range(texts)]


def decode(lm: LanguageModel, arm: Arm, prompts: Sequence[Any], temperature: float) -> float:
    """Tokens per second once all prompts are read."""
    batch = arm.batch(Limits(requests=len(prompts)))
    for number, prompt in enumerate(prompts):
        stream = lm.stream(
            prompt,
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            temperature=temperature,
            seed=number,
        )
        batch.add(stream.sequence)
    begun: set[int] = set()
    tokens, since = 0, 0.0
    while len(batch):
        events = [event for event in batch.step() if event.progress and event.progress.tokens]
        if len(begun) == len(prompts):
            tokens += sum(len(event.progress.tokens) for event in events)
            if any(event.finish_reason for event in events):
                break  # from here on there are fewer texts
        begun |= {event.number for event in events}
        if len(begun) == len(prompts) and not since:
            since = time.perf_counter()
    seconds = time.perf_counter() - since
    batch.close()
    return tokens / seconds


def run(counts: Sequence[int], rounds: int) -> None:
    """Append one record per arm, number of texts, temperature and round that is not there yet."""
    loaded = draftwood.load("smollm2-135m")
    models = {arm.method: loaded.with_method(arm.method) for arm in ARMS}
    for model in models.values():
        model.generate("What is a river?", max_new_tokens=32)
    done = {(r["arm"], r["texts"], r["temperature"], r["round"]) for r in read(RECORDS)}
    for turn in range(rounds):
        for texts in counts:
            for temperature in (0.0, 1.0):
                for arm in ARMS[turn % 3 :] + ARMS[: turn % 3]:
                    if (arm.name, texts, temperature, turn) in done:
                        continue
                    speed = decode(models[arm.method], arm, prompts_for(texts, turn), temperature)
                    print(turn, texts, temperature, arm.name, round(speed), flush=True)
                    append(
                        RECORDS,
                        {
                            "arm": arm.name,
                            "texts": texts,
                            "temperature": temperature,
                            "round": turn,
                            "tokens_per_second": round(speed, 1),
                            "processor": processor(),
                        },
                    )


def tables(records: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Speeds by texts, and how ``auto`` compares with the others, round by round."""
    counts = sorted({row["texts"] for row in records})
    for temperature in sorted({row["temperature"] for row in records}):
        speeds = {
            (row["arm"], row["texts"], row["round"]): row["tokens_per_second"]
            for row in records
            if row["temperature"] == temperature
        }
        rows = [(arm.name, *(_cell(speeds, arm.name, count) for count in counts)) for arm in ARMS]
        rows.append(
            ("auto over the faster of the others", *(_ratio(speeds, count) for count in counts))
        )
        heads = tuple(f"{count} text{'s' * (count > 1)}" for count in counts)
        yield Table(f"Tokens per second at T = {temperature:g}", ("", *heads), tuple(rows))


def _cell(speeds: Mapping[tuple[str, int, int], float], arm: str, count: int) -> str:
    found = [speed for (name, texts, _), speed in speeds.items() if (name, texts) == (arm, count)]
    return spread(found, 0)


def _ratio(speeds: Mapping[tuple[str, int, int], float], count: int) -> str:
    """``auto`` over that one of the others which is the faster one, median of rounds."""
    rounds = [turn for arm, texts, turn in speeds if (arm, texts) == ("auto", count)]

    def over(arm: str) -> float:
        return median(speeds["auto", count, turn] / speeds[arm, count, turn] for turn in rounds)

    return f"{min(over(ARMS[0].name), over(ARMS[2].name)):.2f}"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=["run", "show"])
    parser.add_argument("--texts", default="1,2,4,8,16", help="numbers of texts, by commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.act == "run":
        run([int(count) for count in options.texts.split(",")], options.rounds)
    for table in tables(read(RECORDS)):
        print(shown(table), end="\n\n")


if __name__ == "__main__":
    main()
