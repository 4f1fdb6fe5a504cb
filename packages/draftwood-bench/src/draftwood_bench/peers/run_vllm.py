"""Adapter for vLLM's offline engine; speculation is its n-gram method. Needs a GPU.

vLLM tells no time of the first token that holds for all its versions, so every request is made
twice: for one token, and whole. The difference is the time of decoding.
"""

import argparse
import time
from functools import cache

import vllm  # pyright: ignore[reportMissingImports]
from protocol import LoadedPeer, PeerRequest, Reply, parser, serve

GUESSES, NGRAM = 5, 3
SHARE = 0.35  # of the GPU's memory for each mode's engine


def load(arguments: argparse.Namespace) -> LoadedPeer:
    @cache  # an engine is made for one mode; the first request of a mode pays for it
    def engine(mode: str) -> vllm.LLM:
        lookup = {"method": "ngram", "num_speculative_tokens": GUESSES, "prompt_lookup_max": NGRAM}
        return vllm.LLM(
            model=arguments.weights,
            dtype=arguments.dtype,
            gpu_memory_utilization=SHARE,
            enable_prefix_caching=False,
            speculative_config=lookup if mode == "speculation" else None,
        )

    def timed(request: PeerRequest, tokens: int) -> tuple[list[int], float]:
        options = vllm.SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=request.ignore_eos
        )
        since = time.perf_counter()
        result = engine(request.mode).generate(
            {"prompt_token_ids": request.prompt_ids}, options, use_tqdm=False
        )
        return list(result[0].outputs[0].token_ids), time.perf_counter() - since

    def answer(request: PeerRequest) -> Reply:
        _, prefill = timed(request, 1)
        tokens, whole = timed(request, request.max_new_tokens)
        return Reply(tokens, prefill, max(0.0, whole - prefill))

    weights = f"{arguments.dtype}, the same folder"
    return LoadedPeer(answer, weights, arguments.weight_bytes, {"vllm": vllm.__version__})


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--weight-bytes", type=int, required=True)
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
