"""Take over records of the old RSD benchmark: python benchmarks/convert_rsd.py OLD.jsonl ... FOLDER"""

import sys
from pathlib import Path

from data import read_records
from draftwood.bench.convert import convert_rsd


def main() -> None:
    """Convert all files named before the folder."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    old = [record for file in sys.argv[1:-1] for record in read_records(Path(file))]
    print(f"{convert_rsd(old, Path(sys.argv[-1]))} records added to {sys.argv[-1]}")


if __name__ == "__main__":
    main()
