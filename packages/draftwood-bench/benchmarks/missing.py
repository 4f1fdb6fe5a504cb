"""Measure the methods that no other run measures, so that `draftwood methods` has a figure of each.

    python -m benchmarks.missing                      # half an hour; goes on where it was stopped
    python -m benchmarks.missing --medusa FOLDER --hydra FOLDER
    python -m benchmarks.missing --list               # the commands alone

All methods of a run answer a prompt, and plain decoding with them, before any sees the next one;
greedily and at temperature 1. Methods that draw from a draft model draw from the EAGLE head here,
which stands in for it; those that run a second model themselves are measured with TinyLlama.

Medusa's and Hydra's heads are in no package: `python -m benchmarks.training.drafters` trains them
at equal data, `python -m benchmarks.family` SpecDec's and LongSpec's, and `python -m
benchmarks.training.family` the others. Their folders' names stand beside the figures, so let them
say the amount of data (medusa-300k); their cards, which tell data, recipe and command, are kept
with the records.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.json_lines import RESULTS
from benchmarks.common.processes import ROOT
from benchmarks.common.scripts import parser_of
from draftwood.heads.folder import CARD
from draftwood.heads.places import shipped
from draftwood.methods.drafts import Drafts

SPEC_BENCH = ("--prompts", "spec-bench", "--per-category", "1")
STORIES = ("--model", "tinyllama-1.1b", "--prompts", "stories", "--limit", "8")
SHORT = ("--temperature", "0,1", "--max-new-tokens", "64", "--bound-prompts", "0")
COMMAND = "from draftwood.cli.main import main; main()"


@dataclass(frozen=True)
class Run:
    """Methods that are measured together.

    Attributes:
        name: of the folder in ``results``.
        methods: beside plain decoding.
        draft: what drafts, by ``--draft-model``.
        prompts: options that choose them, and the model.
    """

    name: str
    methods: tuple[str, ...]
    draft: str | None = None
    prompts: tuple[str, ...] = SPEC_BENCH

    def words(self, draft: str | None) -> list[str]:
        """The command, without its program."""
        drafts = () if draft is None else ("--draft-model", draft)
        words = ("bench", "spec-bench", *self.prompts, *SHORT, "--law-prompts", "0", "--inexact")
        output = str((RESULTS / self.name).relative_to(ROOT))
        return [*words, *drafts, "--methods", ",".join(self.methods), "--output", output]


RUNS = (
    Run(
        "drawn",
        (
            *("speculative", "block", "spectr", "specinfer", "rsd-c", "rsd-s", "traversal"),
            *("greedy-plus-one", "sequoia", "eagle-2-tree", "until", "typical", "merged-graph"),
            *("eagle", "eagle-rsd"),
        ),
        "smollm2-135m-eagle",
    ),
    Run("ctc", ("ctc", "ctc-paper", "ctc-raw", "ctc-rsd"), "smollm2-135m-ctc"),
    Run("lm", ("lm", "lm-rsd"), "smollm2-135m-lm"),
    Run("medusa", ("medusa",), "smollm2-135m-medusa"),
    Run("hydra", ("hydra",), "smollm2-135m-hydra"),
    Run("specdec", ("specdec", "specdec-relaxed"), "smollm2-135m-specdec"),
    Run("longspec", ("longspec",), "smollm2-135m-longspec"),
    Run("dflash", ("dflash", "dflash-rsd"), "smollm2-135m-dflash"),
    Run("masked-block", ("masked-block", "masked-in-pass"), "smollm2-135m-masked"),
    Run("s2d", ("s2d",), "smollm2-135m-s2d"),
    Run("specdec++", ("specdec++",), "smollm2-135m-specdec++"),
    Run("parts", ("layer-search", "early-exit", "ppd-pipelined", "del", "windowed", "propd")),
    Run("jacobi", ("sjd", "raced-jacobi", "gsd")),
    Run(
        "composed",
        ("merged", "merged-drawn", "cascade", "lenient-cascade"),
        "stories-15m",
        STORIES,
    ),
)
HEADS = ("medusa", "hydra", "specdec", "longspec", "dflash", "masked-block", "s2d", "specdec++")
"""Runs whose heads do not come with draftwood, as long as no package brings them."""
OF_OTHER_MODELS = frozenset({"mtp", "mtp-rsd"})
"""Methods for which no package brings a model: one with a layer for multi-token prediction."""


def keep_card(name: str, folder: Path, results: Path = RESULTS) -> None:
    """Keep the card of a head that no package brings beside the records of its run.

    Args:
        name: of the run, which is its head's method.

    Raises:
        ValueError: for a head of another method, and one whose training nobody can repeat.
    """
    found = Drafts(head=str(folder)).drafter
    if found != name:
        raise ValueError(f"{folder} holds a head of {found}; name one of {name} with --{name}")
    card = folder / CARD
    if not card.is_file():
        raise ValueError(f"{folder} has no {CARD}, so nobody could train it again; train one")
    (results / name).mkdir(parents=True, exist_ok=True)
    (results / name / CARD).write_text(card.read_text(encoding="utf-8"), encoding="utf-8")


def commands(given: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Commands of the runs whose drafts are there, by run.

    Args:
        given: folders of heads by run.
    """
    known, found = shipped(), {}
    for run in RUNS:
        draft = given.get(run.name) or run.draft
        if run.name not in HEADS or given.get(run.name) or draft in known:
            found[run.name] = run.words(draft)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, run by run; the exit code of the first that fails, else 0."""
    parser = parser_of(__doc__)
    parser.add_argument("--list", action="store_true", help="print the commands alone")
    for name in HEADS:
        told = f"folder of trained {name} heads of smollm2-135m"
        parser.add_argument(f"--{name}", dest=name, help=told)
    asked = parser.parse_args(arguments)
    given = {name: getattr(asked, name) for name in HEADS}
    given = {name: str(Path(folder).resolve()) for name, folder in given.items() if folder}
    chosen = commands(given)
    for run in RUNS:
        if run.name not in chosen:
            print(f"{run.name} is left out: name its heads with --{run.name} FOLDER")
            continue
        print(f"draftwood {shlex.join(chosen[run.name])}", flush=True)
        if not asked.list:
            if run.name in given:
                keep_card(run.name, Path(given[run.name]))
            program = [sys.executable, "-c", COMMAND, *chosen[run.name]]
            code = subprocess.run(program, cwd=ROOT, check=False).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
