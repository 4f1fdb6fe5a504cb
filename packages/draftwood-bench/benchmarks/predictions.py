"""Speed of an edit whose file is given as prediction: with it, without it, plainly, with another.

    python -m benchmarks.predictions [--model qwen2.5-coder-1.5b] [--tokens 512]

The file has 200 lines: 20 small functions of ten lines, in each of which one line is to change. All
answers are greedy and must be the same. Prints a line for each: tokens a second behind the first,
seconds of the whole request, tokens per pass.
"""

import argparse
import time
from typing import Any

import draftwood
from benchmarks.common.processes import print_table
from draftwood.text.language_model import LanguageModel

VERBS = ("count", "sum", "list", "find", "sort", "join", "split", "scale", "shift", "merge")
NOUNS = ("words", "prices")
WISH = "Replace every `print(` with `logging.info(` in this file."
ASKED = "```python\n{}\n```\n\n{} Answer with the whole changed file and nothing else."
STRANGE = "Es war einmal ein kleines Mädchen, das hatte eine Großmutter im Wald. " * 60


def function(number: int, verb: str, noun: str) -> list[str]:
    """Ten lines, of which one prints."""
    bodies = (
        [f"    for place, each in enumerate({noun}):", f"        found.append(each[:{number}])"],
        [f"    for each in {noun}:", f"        found.extend([each] * {number})"],
        [f"    while len(found) < {number + 3}:", f"        found += list({noun})"],
    )
    return [
        f"def {verb}_{noun}({noun}):",
        f'    """{verb.capitalize()} {noun} in the {number}. way."""',
        "    found = []",
        *bodies[number % 3],
        f"    assert len(found) >= {number % 2}",
        f'    print("{verb} {noun}", len(found))',
        "    return found",
        "",
        "",
    ]


def file() -> str:
    """The file of 200 lines."""
    names = [(verb, noun) for noun in NOUNS for verb in VERBS]
    return "\n".join(line for n, name in enumerate(names, 1) for line in function(n, *name))


def measured(
    lm: LanguageModel, name: str, prompt: str, **options: Any
) -> tuple[dict[str, object], list[int]]:
    """A row of the table, and the tokens of the answer."""
    since = time.perf_counter()
    result = lm.generate(prompt, **options)
    wall, stats = time.perf_counter() - since, result.stats
    row = {
        "way": name,
        "tokens_per_second": round(stats.tokens_per_second, 1),
        "seconds": round(wall, 2),
        "tokens_per_pass": round(stats.block_efficiency, 2),
    }
    return row, result.token_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--tokens", type=int, default=512)
    given = parser.parse_args()
    auto, text = draftwood.load(given.model, method="auto"), file()
    prompt, length = ASKED.format(text, WISH), {"max_new_tokens": given.tokens}
    runs = [
        measured(auto, "auto, prediction", prompt, prediction=text, **length),
        measured(auto, "auto", prompt, **length),
        measured(auto, "auto, another text", prompt, prediction=STRANGE, **length),
        measured(auto.with_method("plain"), "plain", prompt, **length),
    ]
    print_table([row for row, _ in runs], f"An edit by {given.model}")
    print("the same text" if len({tuple(ids) for _, ids in runs}) == 1 else "THE TEXTS DIFFER")


if __name__ == "__main__":
    main()
