"""draftwood beside its peers on this machine: the same weights, prompts and threads, greedy, decoding alone is timed.

    python benchmarks/peers.py run --output benchmarks/results/peers.jsonl
    python benchmarks/peers.py run --output benchmarks/results/peers.jsonl --peers llama.cpp --draftwood auto:int8
    python benchmarks/peers.py report benchmarks/results/peers.jsonl

Every peer lives in an environment of its own under $DRAFTWOOD_HOME/peers, made on demand; llama.cpp is compiled for
this machine, which takes a while. Every system answers a prompt before any sees the next one, and stands still
meanwhile. Results are appended one by one; a run that was stopped goes on. A peer that cannot be had, or that fails, is
left out with its reason, and the others go on.

Speed is tokens after the first per second after the first token was known. The roofline is the speed at which reading
the weights once per token fills the memory bus; block efficiency beyond 1 can exceed it.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from transformers import AutoTokenizer

from data import Question, read_records, spec_bench
from peers import environments, table, weights
from peers.machine import Machine
from peers.race import Prompt, Race, Setting
from peers.systems import PEERS, systems

WARM_UP = "Name the days of the week, then name them again."


def run(arguments: argparse.Namespace) -> None:
    """Measure what is missing in the file of records."""
    setting = Setting(arguments.model, arguments.max_new_tokens, arguments.threads, arguments.ignore_eos)
    names, entries = (_split(text) for text in (arguments.peers, arguments.draftwood))
    try:
        chosen = systems(names, entries, setting.model, setting.threads)
        prompts, warm_up = tokenized(setting, spec_bench(arguments.prompts_per_category)[: arguments.limit])
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    logs = environments.folder("logs")
    logs.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # an orderly exit also ends the adapters
    race = Race(Path(arguments.output), setting, logs)
    race.run(chosen, prompts, warm_up, Machine(setting.threads))


def tokenized(setting: Setting, questions: list[Question]) -> tuple[list[Prompt], list[int]]:
    """The questions that fit the model's context, and the prompt to warm up with. Raises OSError, ValueError."""
    folder = weights.model_folder(setting.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(text: str) -> list[int]:  # as LanguageModel.encode, but without loading the model
        chat = [{"role": "user", "content": text}]
        wrapped = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return tokenizer(wrapped, add_special_tokens=False)["input_ids"]

    prompts = [Prompt(question, encode(question.text)) for question in questions]
    room = json.loads((folder / "config.json").read_text())["max_position_embeddings"] - setting.max_new_tokens
    long = [str(prompt.question.number) for prompt in prompts if len(prompt.token_ids) > room]
    if long:
        print(f"too long for {setting.model}, left out: {', '.join(long)}", file=sys.stderr)
    return [prompt for prompt in prompts if len(prompt.token_ids) <= room], encode(WARM_UP)


def report(arguments: argparse.Namespace) -> None:
    """Print a table for every setting in the files, then everything as one line of JSON."""
    records = [record for file in arguments.files for record in read_records(Path(file))]
    if not records:
        sys.exit(f"no records in {', '.join(arguments.files)}; make some with `python {sys.argv[0]} run --output FILE`")
    told = []
    for setting in table.settings(records):
        here = [record for record in records if all(record[name] == value for name, value in setting.items())]
        told.append(setting | print_table(setting, here))
    print(json.dumps({"tables": told}))


def print_table(setting: dict, records: list[dict]) -> dict[str, object]:
    """Print one table and say the same as JSON."""
    found, missing = table.rows(records), table.absent(records)
    entries = [row.mode for row in found if row.system == "draftwood"]
    machines = [record["machine"]["processor"] for record in records if "machine" in record]
    bandwidth = table.bandwidth_of(records) / 1e9
    print(
        f"{setting['model']}, up to {setting['max_new_tokens']} tokens"
        f"{' whatever ends the text' if setting['ignore_eos'] else ''}, {setting['threads']} threads, "
        f"{max((row.prompts for row in found), default=0)} prompts; {', '.join(dict.fromkeys(machines))}; "
        f"memory {bandwidth:.1f} GB/s. Tokens per second count decoding alone.\n"
    )
    print(table.speeds_table(found, entries))
    print("\nShare of prompts with exactly the same tokens, for information:\n")
    print(table.texts_table(found))
    for (system, mode), reason in missing.items():
        print(f"\nLeft out: {system}, {mode}: {reason}")
    print()
    versions = {record["system"]: record["versions"] for record in records if "versions" in record}
    told = {"machine": list(dict.fromkeys(machines)), "bandwidth_gb_per_s": round(bandwidth, 2), "versions": versions}
    absent = {f"{system} {mode}": reason for (system, mode), reason in missing.items()}
    return told | {"rows": [table.as_json(row) for row in found], "absent": absent}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure what is not measured yet")
    runs.add_argument("--output", required=True)
    runs.add_argument("--model", default="smollm2-135m", help=f"one of {', '.join(weights.GGUF)}")
    runs.add_argument("--peers", default=",".join(PEERS), help="comma-separated; empty for none")
    runs.add_argument("--draftwood", default="plain:bfloat16,lookup:bfloat16", help="comma-separated METHOD:DTYPE")
    runs.add_argument("--prompts-per-category", type=int, default=2, help="questions of each of the 13 categories")
    runs.add_argument("--limit", type=int, help="only so many of these questions, to try things out")
    runs.add_argument("--max-new-tokens", type=int, default=128)
    runs.add_argument("--threads", type=int, default=2)
    runs.add_argument(
        "--ignore-eos",
        action="store_true",
        help="go on after the model's own end of text, which llama.cpp never writes then",
    )
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table")
    reports.add_argument("files", nargs="+", metavar="file")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
