"""Adapter for draftwood itself with one method and one dtype; it has no other mode."""

import argparse
import time
from pathlib import Path

import torch
from protocol import Answer, Loaded, Request, parser, serve
from weights import bytes_read_per_token

import draftwood


def load(arguments: argparse.Namespace) -> Loaded:
    torch.set_num_threads(arguments.threads)
    lm = draftwood.load(arguments.weights, method=arguments.method, dtype=arguments.dtype)

    def answer(request: Request) -> Answer:
        since = time.perf_counter()
        result = lm.generate(request.prompt_ids, max_new_tokens=request.max_new_tokens, ignore_eos=request.ignore_eos)
        whole, prefill = time.perf_counter() - since, result.stats.seconds["prefill"]
        # Everything outside the prompt's run counts as decoding: also turning tokens into text, which others do not do.
        return Answer(result.token_ids, prefill, max(0.0, whole - prefill), result.stats.target_runs)

    size = bytes_read_per_token(Path(arguments.weights), arguments.dtype)
    versions = {"draftwood": draftwood.__version__, "torch": torch.__version__}
    return Loaded(answer, f"{arguments.dtype}, converted from the GGUF", size, versions)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--method", required=True)
    options.add_argument("--dtype", required=True)
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
