"""Tables of a run of `draftwood bench` in Markdown, for pages.

python benchmarks/show.py results/rsd
python benchmarks/show.py results/rsd --orderings
"""

import argparse
from pathlib import Path

from draftwood.bench.records.files import read_records, read_run
from draftwood.bench.records.notes import notes
from draftwood.bench.report.orderings import orderings
from draftwood.bench.report.tables import tables


def main() -> None:
    """Print all tables with their titles, or which published orderings hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--orderings", action="store_true", help="say which published orderings hold"
    )
    arguments = parser.parse_args()
    run, records = read_run(arguments.folder), read_records(arguments.folder)
    if arguments.orderings:
        print(orderings(records).markdown())
        print(
            '\n"Clearly" means that the 95 % interval of the ratio, resampled over prompts in'
            " pairs, excludes 1."
        )
        return
    for table in tables(records, run):
        print(f"\n{table.title}\n\n{table.markdown()}")
    print()
    for remark in notes(records, run):
        print(f"{remark}.\n")


if __name__ == "__main__":
    main()
