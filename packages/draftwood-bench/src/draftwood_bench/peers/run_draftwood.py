"""Adapter for draftwood itself, so that it starts and answers as its peers do."""

import argparse
from functools import cache
from time import perf_counter

import torch
from protocol import LoadedPeer, PeerRequest, Reply, parser, serve

import draftwood
from draftwood.models.native import NativeModel
from draftwood.text.language_model import LanguageModel


def load(arguments: argparse.Namespace) -> LoadedPeer:
    torch.set_num_threads(arguments.threads)
    plain = draftwood.load(arguments.weights, method="plain", device="cpu")

    @cache  # what a method needs to be measured is measured by its first request
    def using(mode: str) -> LanguageModel:
        return plain if mode == "plain" else plain.with_method(arguments.method)

    def answer(request: PeerRequest) -> Reply:
        lm = using(request.mode)
        began = perf_counter()
        written = lm.generate(
            request.prompt_ids,
            max_new_tokens=request.max_new_tokens,
            ignore_eos=request.ignore_eos,
        )
        spent, first = perf_counter() - began, written.stats.seconds["prefill"]
        return Reply(written.token_ids, first, spent - first, written.stats.target_runs)

    size = plain.model.weight_bytes if isinstance(plain.model, NativeModel) else 0
    held = "the GGUF's own blocks" if isinstance(plain.model, NativeModel) else "bfloat16"
    versions, ends = {"draftwood": draftwood.__version__}, sorted(plain.end_tokens)
    return LoadedPeer(answer, held, size, versions, ends)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--method", default="auto", help="of the mode that speculates")
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
