"""Tables of the speeds in results/speed.jsonl: `auto` and plain decoding beside Transformers' own generate.

    python benchmarks/speed.py results/speed.jsonl

The file was measured by an earlier form of this script: all systems answered a prompt before any answered the next one,
in turning order; speeds are tokens after the first per second after the first. `draftwood bench spec-bench` does this
now, see `make bench-speed`.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from data import markdown, read_records


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
    parser.add_argument("file")
    report(parser.parse_args())


if __name__ == "__main__":
    main()
