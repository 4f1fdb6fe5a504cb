"""Count what drafting with the target itself, or with what is at hand, is worth, with intervals.

    python -m benchmarks.self_speculation run shadow exits       # or all; resumable
    python -m benchmarks.self_speculation run shadow --quiet --threads 2
    python -m benchmarks.self_speculation show                   # the tables, in Markdown

Experiments: layers, exits, shadow, windowed, merged, memory, hybrids. Each has its records, one
line per arm and prompt; an arm and a prompt that are there are not run again. Counts do not depend
on what else the machine does. Seconds do: `--quiet` says that nothing else computes, and records
again what was recorded otherwise.
"""

import torch

from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.self_speculation.experiments import EXPERIMENTS, tables
from benchmarks.self_speculation.paired_counts import Records


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=["run", "show"])
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="all where none is named")
    parser.add_argument("--quiet", action="store_true", help="nothing else computes")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in EXPERIMENTS]:
        parser.error(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    torch.set_num_threads(given.threads)
    for name in given.names or EXPERIMENTS:
        if given.act == "run":
            EXPERIMENTS[name].run(Records(name, given.quiet))
        print_tables((f"**{title}**", rows) for title, rows in tables(name))


if __name__ == "__main__":
    main()
