"""Adapter for Transformers' own generate; speculation is its prompt lookup."""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from protocol import LoadedPeer, PeerRequest, Reply, parser, serve
from transformers import AutoModelForCausalLM, GenerationConfig
from weights import bytes_read_per_token


class Clock:
    """A streamer that notes when tokens become known, and how many at a time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        self.counts.append(tokens.numel())

    def end(self) -> None:
        pass


def load(arguments: argparse.Namespace) -> LoadedPeer:
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    model: Any = AutoModelForCausalLM.from_pretrained(arguments.weights, dtype=arguments.dtype)
    model = model.eval().to(device)
    told = model.generation_config
    # nothing else of the folder's, such as a penalty of what was said, since draftwood takes none
    model.generation_config = GenerationConfig(
        eos_token_id=told.eos_token_id, pad_token_id=told.pad_token_id
    )
    ends = told.eos_token_id

    def answer(request: PeerRequest) -> Reply:
        model.generation_config.eos_token_id = None if request.ignore_eos else ends
        lookup = (
            {"prompt_lookup_num_tokens": arguments.lookup} if request.mode == "speculation" else {}
        )
        prompt = torch.tensor([request.prompt_ids], device=device)
        clock, since = Clock(), time.perf_counter()
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            streamer=clock,
            **lookup,
        )
        done = time.perf_counter()
        # the prompt is put first
        tokens, first = output[0, len(request.prompt_ids) :].tolist(), clock.times[1]
        return Reply(tokens, first - since, done - first, len(clock.times) - 2, clock.counts[1])

    size = bytes_read_per_token(Path(arguments.weights), arguments.dtype)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return LoadedPeer(answer, f"{arguments.dtype}, the same folder", size, versions)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--device", default="cpu")
    options.add_argument(
        "--lookup",
        type=int,
        default=10,
        help="draft tokens per pass; 10 is the documentation's example",
    )
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
