"""Time of the hook beside Transformers' own `generate`, by the number of rows in a batch.

    python -m benchmarks.hook
    python -m benchmarks.hook --model tiny --methods lookup --rows 16,64

Prompts are random tokens, of which nothing can be predicted: what is told is what the hook costs
where drafts bring nothing. Both take turns; each figure is a median over rounds.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import draftwood
from draftwood.loading.hub import load_pretrained
from draftwood_bench.report.table import Table
from draftwood_torch.hook import custom_generate

PROMPT_TOKENS = 48


def model_of(name: str) -> Any:
    """A built-in model in bfloat16, or a tiny one with random weights."""
    if name != "tiny":
        return load_pretrained(name, dtype="bfloat16", device="cpu").model
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=1000, num_attention_heads=4, **sizes, eos_token_id=None)
    return LlamaForCausalLM(config).eval()


def ratio(
    model: Any,
    hook: Callable[..., Any],
    rows: int,
    sampled: bool,
    arguments: argparse.Namespace,
) -> dict[str, object]:
    """Seconds of both by turns."""
    chance = torch.Generator().manual_seed(rows)
    vocab = model.config.vocab_size
    prompts = torch.randint(5, vocab, (rows, PROMPT_TOKENS), generator=chance)
    shared: dict[str, Any] = {
        "attention_mask": torch.ones_like(prompts),
        "max_new_tokens": arguments.tokens,
        "min_new_tokens": arguments.tokens,
        "do_sample": sampled,
        "pad_token_id": 0,
    }
    times: dict[str, list[float]] = {"Transformers": [], "hook": []}
    for turn in range(arguments.rounds + 1):
        for name in list(times)[:: -1 if turn % 2 else 1]:
            own: dict[str, Any] = {"custom_generate": hook} if name == "hook" else {}
            since = time.perf_counter()
            model.generate(prompts, **shared, **own)
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - since)
    mine, others = times["hook"], times["Transformers"]
    ratios = [own / other for own, other in zip(mine, others, strict=True)]
    return {
        "rows": rows,
        "decoding": "sampled" if sampled else "greedy",
        "Transformers, ms a token": round(1e3 * median(others) / arguments.tokens, 2),
        "hook over Transformers": round(median(ratios), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a name, or tiny")
    parser.add_argument("--methods", default="lookup,plain")
    parser.add_argument("--rows", default="1,4,16,64")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model, found = model_of(arguments.model), list[dict[str, object]]()
    for method in arguments.methods.split(","):
        for rows in map(int, arguments.rows.split(",")):
            for sampled in (False, True):
                hook = custom_generate(method)
                told = ratio(model, hook, rows, sampled, arguments)
                found.append({"method": method, **told})
    if arguments.json:
        print(json.dumps({"version": draftwood.__version__, "rows": found}, indent=1))
        return
    cells = [tuple(map(str, row.values())) for row in found]
    print(Table(arguments.model, tuple(found[0]), tuple(cells)).markdown())


if __name__ == "__main__":
    main()
