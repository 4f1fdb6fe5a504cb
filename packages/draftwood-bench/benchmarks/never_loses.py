"""`auto` over plain decoding with heads of all kinds: trained well, hardly, not at all, and none.

    make bench-never-loses
    python -m benchmarks.never_loses run --models smollm2-135m --heads none,shipped,random,FOLDER
    python -m benchmarks.never_loses show

Every arm answers a prompt before any sees the next one: plain decoding, `auto` with each head, and
plain decoding again, whose ratio tells what noise does. `shipped` is the head that comes with
draftwood, where the model has one; `random` has weights that learnt nothing; all others are
folders, such as `draftwood train eagle --minutes 2` makes. What `auto` learns of a head it keeps
from prompt to prompt, as a process that serves does. Seconds are those behind the prompt. Nothing
else should compute.
"""

import argparse
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import draftwood
from benchmarks.common.json_lines import RESULTS, append, grouped, newest, read
from benchmarks.common.scripts import parser_of, print_table
from benchmarks.self_speculation.paired_counts import Side, over
from draftwood.stats import Stats
from draftwood.testing.heads import sure_eagle
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit

RECORDS = RESULTS / "never-loses.jsonl"
MODELS = ("smollm2-135m", "gemma3-270m", "tinyllama-1.1b", "qwen2.5-coder-1.5b")
HEADS = ("none", "shipped", "random")
PLAIN, CONTROL = "plain", "plain again"
ALL = "all"
DRAFTED = range(8192)  # tokens that a head of random weights knows


@dataclass(frozen=True)
class Answer:
    """A text behind its prompt: tokens, seconds, and the text's digest."""

    tokens: int
    seconds: float
    passes: int
    nodes: int
    text: str


def arms(plain: LanguageModel, heads: Sequence[str]) -> dict[str, LanguageModel]:
    """Plain decoding, `auto` with each head that fits, and plain decoding again."""
    found = {PLAIN: plain}
    for head in heads:
        made = sure_eagle(plain.model, DRAFTED) if head == "random" else head
        lm = plain.with_method("auto", draft_model=None if head == "shipped" else made)
        if head == "shipped" and lm.method.drafter.learnable is None:
            print(f"{plain.name} has no head that comes with draftwood")
            continue
        found[Path(head).name] = lm
    return {**found, CONTROL: plain}


def answer(lm: LanguageModel, prompt: Prompt, tokens: int, temperature: float) -> Answer:
    """Write one text, by one seed."""
    since = time.perf_counter()
    stream = lm.stream(
        prompt.turns[0],
        **{"max_new_tokens": tokens, "temperature": temperature, "seed": 0, "ignore_eos": True},
    )
    text = "".join(stream)
    whole, stats = time.perf_counter() - since, Stats.of(stream.steps)
    return Answer(
        stats.tokens - stats.prefills,
        whole - stats.seconds["prefill"],
        stats.target_runs,
        stats.target_runs + stats.drafted,
        hashlib.sha256(text.encode()).hexdigest()[:12],
    )


def run(given: argparse.Namespace) -> None:
    """Answer all prompts in turns, and record each answer.

    Raises:
        SystemExit: where an arm writes another text than plain decoding.
    """
    facts = {"processor": processor(), "commit": commit()}
    prompts = load_prompts(given.prompts, given.per_category).prompts
    for name in given.models.split(","):
        plain = draftwood.load(name, method="plain")
        ways = arms(plain, given.heads.split(","))
        for lm in ways.values():  # what is measured or read once, and code that is new
            answer(lm, prompts[0], given.tokens, given.temperatures[0])
        for temperature in given.temperatures:
            for number in range(given.rounds):
                for prompt in prompts:
                    found = in_turns(ways, prompt, given.tokens, temperature, number)
                    about = {"model": name, "temperature": temperature, "round": number}
                    about |= {"prompts": given.prompts, "category": prompt.category}
                    for arm, each in found.items():
                        own = {"arm": arm, "prompt": prompt.id, **asdict(each)}
                        append(given.output, {**about, **own, **facts})


def in_turns(
    ways: Mapping[str, LanguageModel], prompt: Prompt, tokens: int, temperature: float, turn: int
) -> dict[str, Answer]:
    """Every arm's answer; odd rounds go the other way round."""
    order = list(ways)[:: -1 if turn % 2 else 1]
    found = {arm: answer(ways[arm], prompt, tokens, temperature) for arm in order}
    if len({each.text for each in found.values()}) > 1:
        raise SystemExit(f"texts after prompt {prompt.id} at temperature {temperature:g} differ")
    return found


def side(records: Sequence[Mapping]) -> Side:
    """Tokens and seconds by prompt, over all rounds."""
    found: Side = {}
    for record in records:
        tokens, seconds = found.get(record["prompt"], (0.0, 0.0))
        found[record["prompt"]] = (tokens + record["tokens"], seconds + record["seconds"])
    return found


def rows(recorded: Sequence[Mapping]) -> list[dict[str, str]]:
    """Speed over plain decoding by set, arm and category, the least of a text, and counts.

    Of each set's newest run.
    """
    found = []
    names = ("model", "prompts", "temperature")
    groups = grouped(newest(recorded, *names), *names)
    for (model, prompts, temperature), records in groups.items():
        by_arm = grouped(records, "arm")
        for arm, own in by_arm.items():
            for category, each in {ALL: own, **grouped(own, "category")}.items():
                base = [r for r in by_arm[PLAIN] if category in (ALL, r["category"])]
                if arm != PLAIN:
                    about = {"model": model, "prompts": prompts, "temperature": f"{temperature:g}"}
                    found.append({**about, "head": arm, "category": category} | figures(each, base))
    return found


def text_ratio(prompt: str, own: Sequence[Mapping], base: Sequence[Mapping]) -> float:
    """Seconds of plain decoding over the arm's, in the middle round."""
    mine, plain = (
        {r["round"]: r["seconds"] for r in each if r["prompt"] == prompt} for each in (own, base)
    )
    return median(plain[number] / mine[number] for number in mine)


def figures(own: Sequence[Mapping], base: Sequence[Mapping]) -> dict[str, str]:
    """The ratio with its interval over prompts, and what a pass was."""
    mine, plain = side(own), side(base)
    ratio = over(mine, plain)
    texts = [text_ratio(name, own, base) for name in mine]
    passes = sum(each["passes"] for each in own)
    return {
        "texts": str(len(mine)),
        "ratio": ratio.written(".3f"),
        "least text": f"{min(texts):.3f}",
        "tokens a pass": f"{sum(each['tokens'] for each in own) / passes:.3f}",
        "nodes a pass": f"{sum(each['nodes'] for each in own) / passes:.2f}",
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=("run", "show"))
    parser.add_argument("--models", default=",".join(MODELS), metavar="A,B,C")
    parser.add_argument("--heads", default=",".join(HEADS), metavar="A,B,C")
    parser.add_argument("--prompts", default="spec-bench", help="as draftwood bench takes them")
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RECORDS)
    given = parser.parse_args()
    if given.act == "run":
        run(given)
    if not (table := rows(read(given.output))):
        raise SystemExit(f"{given.output} has no records yet; run first")
    print_table(table, "### `auto` over plain decoding")


if __name__ == "__main__":
    main()
