"""How fast `auto` and plain decoding are, prompt by prompt and category by category, beside Transformers' own generate.

    python benchmarks/speed.py run --output benchmarks/results/speed.jsonl
    python benchmarks/speed.py report benchmarks/results/speed.jsonl

All systems answer a prompt before any answers the next one, in turning order, so that a noisy moment hurts all alike.
Speeds are tokens after the first per second after the first. Results are appended prompt by prompt; a run that was
stopped goes on. The data holds the even half of Spec-Bench.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.progress import track

import draftwood
from data import Question, append_record, markdown, read_records, spec_bench
from draftwood.language_model import LanguageModel
from draftwood.models.hub import load_pretrained

Answer = dict[str, object]
OURS = ("plain", "auto")


def ours(lm: LanguageModel, temperature: float, tokens: int) -> Callable[[Question], Answer]:
    def answer(question: Question) -> Answer:
        result = lm.generate(question.text, max_new_tokens=tokens, temperature=temperature, seed=question.number)
        return {"token_ids": result.token_ids, **result.stats.as_json()}

    return answer


def transformers_generate(lm: LanguageModel, name: str, tokens: int) -> Callable[[Question], Answer]:
    """Transformers' own greedy generate in bfloat16, with a clock that starts when the first token is known."""
    hf_model = load_pretrained(name, dtype="bfloat16").model

    def answer(question: Question) -> Answer:
        times: list[float] = []
        prompt = torch.tensor([lm.encode(question.text)])
        tick: Callable[..., torch.Tensor] = lambda ids, _: times.append(time.perf_counter()) or torch.tensor([False])  # noqa: E731
        out = hf_model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False,
            repetition_penalty=1.0, stopping_criteria=[tick],
        )  # fmt: skip
        answer = out[0, prompt.shape[1] :].tolist()
        return {"token_ids": answer, "tokens_per_second": (len(answer) - 1) / (times[-1] - times[0])}

    return answer


def systems(arguments: argparse.Namespace) -> dict[str, Callable[[Question], Answer]]:
    lm = draftwood.load(arguments.model, method="plain", dtype=arguments.dtype)
    found: dict[str, Callable[[Question], Answer]] = {}
    for temperature in (0.0, 1.0):
        for method in OURS:
            found[f"{method}, T = {temperature:g}"] = ours(lm.with_method(method), temperature, arguments.tokens)
    if not arguments.no_transformers:
        found["Transformers generate, bf16"] = transformers_generate(lm, arguments.model, arguments.tokens)
    return found


def run(arguments: argparse.Namespace) -> None:
    path, questions = Path(arguments.output), spec_bench(arguments.per_category)
    done = {(record["question"], record["round"]) for record in read_records(path)}
    answers = systems(arguments)
    for answer in answers.values():
        answer(questions[0])  # warms up
    work = [(q, turn) for turn in range(arguments.rounds) for q in questions if (q.number, turn) not in done]
    for question, turn in track(work, console=Console(stderr=True), description="questions"):
        record: dict[str, object] = {"model": arguments.model, "question": question.number, "round": turn}
        order = random.Random(f"{question.number} {turn}").sample(list(answers), len(answers))
        results = {name: answers[name](question) for name in order}
        append_record(path, record | {"category": question.category, "systems": results})


def speed(records: Sequence[dict], name: str) -> float:
    """Median over prompts and rounds, of texts with more than one token."""
    return median(record["systems"][name]["tokens_per_second"] for record in records)


def ratios(records: Sequence[dict], name: str, base: str) -> list[float]:
    """Of speeds on the same prompt in the same round."""
    pairs = [(record["systems"][name], record["systems"][base]) for record in records]
    return [a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs if b["tokens_per_second"]]


def total_ratio(records: Sequence[dict], name: str, base: str) -> float:
    """Of all tokens over all seconds, as a user who waits for every answer sees it."""

    def rate(system: str) -> float:
        here = [record["systems"][system] for record in records]
        tokens = [len(answer["token_ids"]) - 1 for answer in here]
        return sum(tokens) / sum(n / a["tokens_per_second"] for n, a in zip(tokens, here, strict=True) if n)

    return rate(name) / rate(base)


def interval(values: Sequence[float]) -> str:
    """Bootstrap 95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(2000))
    return f"{medians[50]:.2f}-{medians[1949]:.2f}"


def report(arguments: argparse.Namespace) -> None:
    records = read_records(Path(arguments.file))
    names = list(records[0]["systems"])
    names.sort(key=lambda name: ("T = 1" in name, name.startswith("Transformers"), not name.startswith("plain")))
    rows = []
    for name in names:
        base = "plain, T = 1" if "T = 1" in name else "plain, T = 0"
        paired = ratios(records, name, base)
        stats = [record["systems"][name] for record in records]
        ours_only = [s for s in stats if "target_runs" in s]
        runs = sum(s["target_runs"] for s in ours_only)
        same = sum(s["token_ids"] == r["systems"][base]["token_ids"] for s, r in zip(stats, records, strict=True))
        rows.append(
            [
                name,
                f"{speed(records, name):.1f}",
                f"{median(paired):.2f} ({interval(paired)})",
                f"{total_ratio(records, name, base):.2f}",
                f"{sum(s['tokens'] - 1 for s in ours_only) / runs:.2f}" if runs else "",
                f"{sum(s['drafted'] for s in ours_only) / runs:.1f}" if runs else "",
                f"{share_outside(ours_only):.1%}" if runs else "",
                f"{same}/{len(records)}" if "T = 0" in name else "",
            ]
        )
    head = ["system", "tokens/s", "x plain, median", "x plain, total", "tokens per run", "guesses per run"]
    print(markdown([*head, "time outside model and drafter", "same text as plain"], rows))
    print("\n`auto` over plain by category, median over prompts and rounds:\n")
    categories = list(dict.fromkeys(record["category"] for record in records))
    groups = {category: [r for r in records if r["category"] == category] for category in categories}
    lines = [
        [f"T = {t}", *(f"{median(ratios(groups[c], f'auto, T = {t}', f'plain, T = {t}')):.2f}" for c in categories)]
        for t in (0, 1)
    ]
    print(markdown(["", *categories], lines))


def share_outside(stats: Sequence[dict]) -> float:
    """Share of the decoding time that is neither the model's nor the drafter's."""
    verify, rest = (
        sum(sum(s["seconds"][p] for p in phases) for s in stats) for phases in (["verify"], ["draft", "target"])
    )
    return verify / (verify + rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure what is not measured yet")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--dtype", help="of our own systems; the default is that of draftwood.load")
    runs.add_argument("--per-category", type=int, default=2, help="questions of each of the 13 categories")
    runs.add_argument("--tokens", type=int, default=128)
    runs.add_argument("--rounds", type=int, default=3)
    runs.add_argument("--no-transformers", action="store_true", help="leave Transformers' generate out")
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the tables")
    reports.add_argument("file")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
