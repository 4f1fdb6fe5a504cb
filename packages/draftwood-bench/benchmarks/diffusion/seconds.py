"""When filling masks pays: passes over blocks beside passes of one token, in seconds.

    python -m benchmarks.diffusion.seconds curves   # what a block's pass costs, by model
    python -m benchmarks.diffusion.seconds decode   # stories by block length beside plain decoding

``curves`` prints T(n) / T(1): the tokens a pass that a block of n has to give to break even.
``decode`` writes stories of the same weights both ways, one at a time, the ways in turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import draftwood
from benchmarks.common.scripts import parser_of, print_table
from draftwood import engine
from draftwood.costs.curve import measure
from draftwood.drafters import Nothing
from draftwood.engine import Options, run_all
from draftwood.sampling import Sampling
from draftwood.text.prompts import encode_text
from draftwood.verifiers import Match
from draftwood_diffusion.loop import written
from draftwood_diffusion.opening import BLOCK_LENGTH, masked_model
from draftwood_diffusion.unmasking import parse

MODELS = (
    "stories-15m",
    "stories-diffusion",
    "smollm2-135m",
    "tinyllama-1.1b",
    "qwen2.5-coder-1.5b",
)
BLOCKS = (4, 8, 16, 32)
LENGTHS = (4, 8, 16)
RULES = ("threshold", "threshold,tau=0.7")


def curves(models: Sequence[str]) -> None:
    """Print what passes over blocks cost, behind 128 tokens."""
    lines = []
    for name in models:
        curve = measure(draftwood.load(name, method="plain").model, BLOCKS, seconds=20.0)
        line = {"model": name, "T(1), ms": f"{1000 * curve(1):.2f}"}
        lines.append(line | {f"T({n}) / T(1)": f"{curve(n) / curve(1):.2f}" for n in BLOCKS})
    print_table(lines, "What a pass over a block costs")


def decode(model: str, texts: int, longest: int) -> None:
    """Print seconds of stories token by token and in blocks, with the same weights."""
    lm = draftwood.load(model, method="plain")
    prompt, ends = encode_text(lm.tokenizer, ""), lm.end_tokens

    def plain(seed: int) -> tuple[int, int]:
        asked = Options(Sampling(1.0), longest, stop_tokens=ends, seed=seed)
        text = engine.Sequence(lm.model, Nothing(), Match(), prompt, asked)
        steps = [step for _, step in run_all([text])]
        tokens = sum(len(step.tokens) for step in steps)
        return tokens, tokens

    def filled(rule: str, length: int) -> Callable[[int], tuple[int, int]]:
        masked, method = masked_model(lm, {BLOCK_LENGTH: length}), parse(rule)

        def write(seed: int) -> tuple[int, int]:
            asked = Options(Sampling(1.0), longest, stop_tokens=ends, seed=seed)
            text = written(masked, prompt, asked, method)
            return len(text.tokens), text.runs

        return write

    ways = {"plain": plain}
    ways |= {f"{rule}, block {n}": filled(rule, n) for rule in RULES for n in LENGTHS}
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in ways}
    for seed in range(texts):
        for name, way in ways.items():
            began = time.perf_counter()
            tokens, passes = way(seed)
            found[name].append((time.perf_counter() - began, tokens, passes))
    base = [spent / tokens for spent, tokens, _ in found["plain"]]
    lines = []
    for name, own in found.items():
        each = [spent / tokens for spent, tokens, _ in own]
        speed = median(other / one for one, other in zip(each, base, strict=True))
        rate = sum(tokens for _, tokens, _ in own) / sum(passes for _, _, passes in own)
        line = {"way": name, "ms a token": f"{1000 * median(each):.3f}"}
        lines.append(line | {"tokens a pass": f"{rate:.2f}", "speed, of plain": f"{speed:.2f}"})
    print_table(lines, f"{model}, {texts} stories of at most {longest} tokens, temperature 1")


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    costs, decoding = commands.add_parser("curves"), commands.add_parser("decode")
    costs.add_argument("--models", nargs="+", default=MODELS)
    decoding.add_argument("--model", default="stories-diffusion")
    decoding.add_argument("--texts", type=int, default=40)
    decoding.add_argument("--longest", type=int, default=96)
    run(parser.parse_args())


def run(given: argparse.Namespace) -> None:
    """Print the table that was asked for."""
    if given.command == "curves":
        curves(given.models)
    else:
        decode(given.model, given.texts, given.longest)


if __name__ == "__main__":
    main()
