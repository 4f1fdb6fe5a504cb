"""First draft tokens of a head on its held-out texts beside Spec-Bench, kind by kind of task.

    python -m benchmarks.training.gap run HEAD DATA [--again]
    python -m benchmarks.training.gap show

DATA is what the head was trained on, by `draftwood train data`. The target answers the prompts that
these hold out, and those of Spec-Bench (its even half, both turns), greedily and with as many
tokens at most. The head reads the target's states at every place of an answer, as `draftwood train
judge` has it, and the figure is the share of places at which its likeliest first token is right. An
interval draws prompts again; a single prompt has none.

The file of a record is named by the digest of the head's weights, so Spec-Bench is read once per
head: a second run shows what is kept, and `--again` reads it anew. A run that was stopped goes on.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import draftwood
from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import parser_of, print_table
from draftwood.heads import folder as folders
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.statistics import DRAWS, Estimate
from draftwood_bench.run.describe import commit
from draftwood_bench.run.workbench import encoded
from draftwood_train.by_kind import MEAN, HeadJudge
from draftwood_train.data.dataset import Dataset, Texts
from draftwood_train.data.everyday.material import HELD_OUT_LANGUAGE
from draftwood_train.data.everyday.tasks import INTO
from draftwood_train.data.jobs import SECOND_TURN
from draftwood_train.data.manifest import Manifest
from draftwood_train.data.states import spread_of
from draftwood_train.doctor.texts import read as read_text

FOLDER = RESULTS / "gap"
HELD_OUT, SPEC_BENCH, END = "held-out", "Spec-Bench", "end"
TITLE = "First draft token right"
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "chat": (("chat",), ("roleplay", "reasoning", "extraction", "stem", "humanities")),
    "writing": (("writing",), ("writing",)),
    "code": (("code",), ("coding",)),
    "sums": (("sums",), ("math_reasoning", "math")),
    "facts": (("facts",), ("qa",)),
    "summary": (("summary",), ("summarization",)),
    "rag": (("rag",), ("rag",)),
    INTO: ((INTO, f"{HELD_OUT_LANGUAGE} into English"), ("translation",)),
    SECOND_TURN: ((SECOND_TURN,), (SECOND_TURN,)),
}
"""Kinds of held-out texts, and the categories of Spec-Bench that ask for the same."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """Settings that figures are of, the first line of a record.

    Attributes:
        head: its name.
        weights: digest of its weights.
        data_digest: of the data's list of shards.
        tokens: of each answer, at most.
        most: prompts of each category of Spec-Bench; None for all.
    """

    head: str
    weights: str
    target: str
    data: str
    data_digest: str
    tokens: int
    most: int | None


@dataclass(frozen=True, eq=False)
class Gap:
    """Judge one head on both sides, text by text, and append what comes of it.

    Attributes:
        path: of the record.
        layers: whose inputs the data hold.
        tokens: of each answer, at most.
    """

    path: Path
    judge: HeadJudge
    lm: LanguageModel
    layers: tuple[int, ...]
    tokens: int

    @cached_property
    def spread(self) -> torch.Tensor:
        """Sizes of the states' entries [layers dim], by which they are rounded as in training."""
        return spread_of(self.lm.model, self.layers)

    def held_out(self, texts: Texts) -> None:
        """Judge the head on prompts that the data hold out, of kinds that Spec-Bench has too."""
        wanted, known = {each for own, _ in KINDS.values() for each in own}, self._known(HELD_OUT)
        asked = set[tuple[int, ...]]()
        for number, kind in enumerate(texts.kinds):
            text = texts.tokens_of(number)
            prompt = tuple(text.tokens[: text.answer].tolist())
            if kind in wanted and prompt not in asked and (kind, str(number)) not in known:
                answered, _ = self._answered(prompt)
                self._judge(HELD_OUT, kind, str(number), answered, len(prompt))
            asked.add(prompt)  # of several answers to a prompt one is greedy

    def spec_bench(self, prompts: Sequence[Prompt]) -> None:
        """Judge the head on Spec-Bench."""
        known = self._known(SPEC_BENCH)
        for prompt in prompts:
            kinds = [prompt.category, SECOND_TURN][: len(prompt.turns)]
            missing = [kind for kind in kinds if (kind, prompt.id) not in known]
            answers = list[str]()
            for kind in kinds if missing else ():
                asked, room = encoded(self.lm, prompt, answers), self.lm.model.context_length
                if room is not None and len(asked) + self.tokens > room:
                    print(f"{SPEC_BENCH}: {kind}, {prompt.id} is longer than the target reads")
                    break
                answered, text = self._answered(asked)
                answers.append(text)
                if kind in missing:
                    self._judge(SPEC_BENCH, kind, prompt.id, answered, len(asked))

    def _known(self, side: str) -> set[tuple[str, str]]:
        return {
            (each["kind"], each["prompt"]) for each in read(self.path) if each.get("side") == side
        }

    def _answered(self, prompt: Sequence[int]) -> tuple[torch.Tensor, str]:
        """The target's greedy answer to a prompt: tokens of both [places], and its text."""
        made = self.lm.generate(list(prompt), max_new_tokens=self.tokens, temperature=0.0)
        return torch.tensor([*prompt, *made.token_ids]), made.text

    def _judge(self, side: str, kind: str, prompt: str, tokens: torch.Tensor, answer: int) -> None:
        text = read_text(self.lm, tokens, answer, self.layers, self.spread)
        found = self.judge.text(text, self.layers)
        places, right = 0, 0
        if found is not None:
            if found.depth_1 is None:
                raise ValueError("the head's recipe does not tell if its first token is right")
            places, right = found.places, round(found.depth_1 * found.places)
        record = {"side": side, "kind": kind, "prompt": prompt, "places": places, "right": right}
        append(self.path, record)
        print(f"{side}: {kind}, {prompt}", flush=True)


def run(
    head: str, data: Path, tokens: int, most: int | None, again: bool, folder: Path = FOLDER
) -> Path:
    """Judge a head on both sides, unless that is kept; return the file of the record.

    Raises:
        ValueError: where what is kept is of other data or settings.
    """
    trained, manifest = folders.load(head), Manifest.read(data)
    name, digest = manifest.target.name, trained.digest
    settings = Settings(Path(head).name, digest, name, data.name, manifest.digest, tokens, most)
    path = folder / f"{digest[:16]}.jsonl"
    kept = [] if again else read(path)
    require_same(kept, settings, path)
    if any(each.get("side") == END for each in kept):
        return path
    lm = draftwood.load(name, method="plain", dtype=manifest.target.products, device="cpu")
    dataset = Dataset.open(data, lm.model)
    judge = HeadJudge.of(trained, lm.model, name)
    if not kept:
        path.unlink(missing_ok=True)
        append(path, {**asdict(settings), "commit": commit()})
    gap = Gap(path, judge, lm, dataset.layers, tokens)
    gap.held_out(dataset.texts("held-out"))
    gap.spec_bench(load_prompts("spec-bench", per_category=most).prompts)
    append(path, {"side": END})
    return path


def require_same(kept: Sequence[Row], settings: Settings, path: Path) -> None:
    """Refuse to go on with a record of other data or settings."""
    for field, value in asdict(settings).items():
        if field != "head" and kept and kept[0][field] != value:
            raise ValueError(
                f"{path} is of {field} {kept[0][field]}, not {value}; give the same again, or"
                " --again to read Spec-Bench once more"
            )


def shares(records: Sequence[Row], side: str, kinds: Sequence[str]) -> tuple[np.ndarray, int]:
    """Shares of right tokens of some kinds: of all prompts, then of prompts drawn again.

    Returns them [1 + draws], empty without a place of these kinds, and the number of prompts.
    """
    own = [
        (each["right"], each["places"])
        for each in records
        if each.get("side") == side and each["kind"] in kinds and each["places"]
    ]
    if not own:
        return np.empty(0), 0
    sums = np.array(own, dtype=float)
    # every kind of either side is drawn apart
    rng = np.random.default_rng(zlib.crc32(" ".join((side, *kinds)).encode()))
    lots = [np.arange(len(sums))[None], rng.integers(len(sums), size=(DRAWS, len(sums)))]
    pooled = sums[np.concatenate(lots)].sum(1)
    return pooled[:, 0] / pooled[:, 1], len(own)


def told(draws: np.ndarray, fewest: int) -> str:
    """A figure, the first of its draws, and the interval of the others unless a prompt is alone."""
    if not len(draws) or fewest < 2:
        return f"{draws[0]:.2f}" if len(draws) else "-"
    low, high = np.quantile(draws[1:], (0.025, 0.975))
    return str(Estimate(float(draws[0]), float(low), float(high), fewest))


def rows(records: Sequence[Row]) -> list[dict[str, str]]:
    """A line for each kind, and the mean over the kinds that both sides have.

    A gap is the held-out share less that of Spec-Bench.
    """
    found = list[dict[str, str]]()
    both = list[tuple[np.ndarray, np.ndarray]]()
    counts = list[tuple[int, int]]()
    for kind, (own, categories) in KINDS.items():
        held_out, prompts = shares(records, HELD_OUT, own)
        measured, questions = shares(records, SPEC_BENCH, categories)
        found.append(_row(kind, (held_out, measured), [(prompts, questions)]))
        if prompts and questions:
            both.append((held_out, measured))
            counts.append((prompts, questions))
    if both:
        held_out, measured = np.mean(both, axis=0)
        found.append(_row(MEAN, (held_out, measured), counts))
    return found


def _row(
    kind: str, draws: tuple[np.ndarray, np.ndarray], counts: Sequence[tuple[int, int]]
) -> dict[str, str]:
    """A line of the table; ``counts`` are the prompts of both sides, kind by kind."""
    row = {"kind": kind}
    sides = zip((HELD_OUT, SPEC_BENCH), draws, zip(*counts, strict=True), strict=True)
    for side, own, prompts in sides:
        row |= {side: told(own, min(prompts)), f"{side} prompts": str(sum(prompts))}
    held_out, measured = draws
    known = len(held_out) and len(measured)
    row["gap"] = told(held_out - measured, min(map(min, counts))) if known else "-"
    return row


def show(path: Path) -> None:
    """Print the table of a record; nothing for a folder without records."""
    kept = read(path)
    if kept:
        is_whole = any(each.get("side") == END for each in kept)
        told = f"{kept[0]['head']} for {kept[0]['target']}, data {kept[0]['data']}"
        print_table(rows(kept), f"{TITLE}: {told}{'' if is_whole else ', not all texts yet'}")


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run")
    command.add_argument("head", help="name or folder")
    command.add_argument("data", type=Path)
    command.add_argument("--tokens", type=int, default=128, help="of each answer, at most")
    command.add_argument("--most", type=int, help="prompts of each category of Spec-Bench")
    command.add_argument("--again", action="store_true", help="in place of what is kept")
    command.add_argument("--threads", type=int, default=2)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "show":
        for path in sorted(FOLDER.glob("*.jsonl")):
            show(path)
        return
    torch.set_num_threads(given.threads)
    show(run(given.head, given.data, given.tokens, given.most, given.again))


if __name__ == "__main__":
    main()
