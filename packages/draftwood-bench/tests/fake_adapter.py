"""An adapter without a model: it repeats the prompt's last token, and misbehaves where it is asked
to.

Run as ``python fake_adapter.py --weights x --threads 1 [--misbehave HOW] [--dies-at N]
[--dies-of-length N] [--asked FILE]``.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src" / "draftwood_bench" / "peers"))

from protocol import LoadedPeer, PeerRequest, Reply, parser, serve

options = parser(__doc__)
options.add_argument(
    "--misbehave", default="", choices=["", "load", "die", "raise", "no-json", "no-answer"]
)
options.add_argument("--dies-at", type=int, default=0, help="the request that kills it; 0 is none")
options.add_argument(
    "--dies-of-length", type=int, nargs="*", default=[], help="prompts of so many tokens kill it"
)
options.add_argument("--asked", type=Path, help="file for a line per request")
arguments = options.parse_args()
count = 0


def answer(request: PeerRequest) -> Reply:
    global count
    count += 1
    print("libraries print to stdout too")
    if arguments.asked:
        with arguments.asked.open("a") as file:
            file.write(f"{request.mode} {len(request.prompt_ids)}\n")
    if count == arguments.dies_at or (
        count > 1 and len(request.prompt_ids) in arguments.dies_of_length
    ):
        os._exit(3)
    if request.prompt_ids[0] == 13 and arguments.misbehave == "die":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    if request.prompt_ids[0] == 13 and arguments.misbehave == "raise":
        raise RuntimeError("the prompt brings bad luck")
    if request.prompt_ids[0] == 13 and arguments.misbehave == "no-answer":
        return Reply(["no", "tokens"], 0.5, 0.5)
    runs = 2 if request.mode == "speculation" else 1
    tokens = [request.prompt_ids[-1]] * request.max_new_tokens
    return Reply(tokens, 0.5, len(tokens) * 0.01 / runs, (len(tokens) - 1) // runs)


def load() -> LoadedPeer:
    if arguments.misbehave == "load":
        raise OSError("these weights cannot be read")
    return LoadedPeer(answer, "none", 1_000_000, {"fake": "1"})


if arguments.misbehave == "no-json":
    print("Hello!", flush=True)
serve(load)
