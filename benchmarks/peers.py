"""Tables of results/peers.jsonl: draftwood beside other systems, greedy, decoding alone is timed.

    python benchmarks/peers.py results/peers.jsonl

The file was measured by an earlier form of this script: the same weights, prompts and threads, every system in an
environment of its own, each answering a prompt before any saw the next one. `draftwood bench spec-bench --peers ...`
does this now, see `make bench-peers`.

Speed is tokens after the first per second after the first token was known. The roofline is the speed at which reading
the weights once per token fills the memory bus; block efficiency beyond 1 can exceed it.
"""

import argparse
import json
import sys
from pathlib import Path

import peers_table as table
from data import read_records


def report(arguments: argparse.Namespace) -> None:
    """Print a table for every setting in the files, then everything as one line of JSON."""
    records = [record for file in arguments.files for record in read_records(Path(file))]
    if not records:
        sys.exit(f"no records in {', '.join(arguments.files)}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="file")
    report(parser.parse_args())


if __name__ == "__main__":
    main()
