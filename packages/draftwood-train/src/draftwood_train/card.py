"""Figures of a head by kind of task in its card, and beside it as a record.

The card holds a table for readers, which the doctor reads too; the record holds the same figures
unrounded, and what they are of.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import draftwood
from draftwood.heads import folder as folders
from draftwood.storage.atomic import write_file
from draftwood_train.by_kind import MEAN, KindFigures
from draftwood_train.data.manifest import Manifest

CARD, RECORD = "card.md", "judged.json"
TITLE = "## Held-out texts by kind"
SECTION = re.compile(rf"^{re.escape(TITLE)}\n.*?(?=^#|\Z)", re.M | re.S)
DATA = re.compile(r"^Data, of digest ([0-9a-f]{12}):", re.M)
LISTED = re.compile(r"^- (\w+): ([\d.]+(?:e[+-]\d+)?)$", re.M)
BAR = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Promises:
    """Figures that a head's card promises.

    Attributes:
        kinds: of held-out texts by kind, and their mean; of the table that ``write`` writes.
        listed: those that training lists, such as ``- guess_1: 0.55``.
        data: beginning of the digest of the data that it was trained on, from whose held-out texts
            the listed figures are; empty where the card tells none.
    """

    kinds: Mapping[str, KindFigures] = field(default_factory=dict)
    listed: Mapping[str, float] = field(default_factory=dict)
    data: str = ""

    @classmethod
    def of(cls, card: str) -> "Promises":
        """Read them from a card.

        Raises:
            ValueError: for a table of figures by kind that is broken.
        """
        section = SECTION.search(card)
        kinds = rows_of(section[0]) if section else []
        listed = {name: float(value) for name, value in LISTED.findall(card)}
        data = DATA.search(card)
        return cls({each.kind: each for each in kinds}, listed, data[1] if data else "")

    def coverage(self, digest: str) -> float | None:
        """Share of held-out answers' tokens in the draft vocabulary; None for data of another
        digest.

        Cards without a digest list that of the training's answers, which no others need have.
        """
        is_of = bool(self.data) and digest.startswith(self.data)
        return self.listed.get("coverage") if is_of else None

    def share(self, kind: str, depth: int) -> float | None:
        """Share of right drafts at a depth, 1 being the first; None where nothing is promised.

        Without a figure for the mean over kinds, what training lists stands for it.
        """
        found = getattr(self.kinds.get(kind), f"depth_{depth}", None)
        return self.listed.get(f"guess_{depth}") if found is None and kind == MEAN else found


def write(
    head: str, data: Path, kinds: Sequence[KindFigures], command: str, model: str | None = None
) -> None:
    """Put figures into a head's card, in place of earlier ones, and beside it as a record.

    Each file is written whole or not at all.

    Args:
        head: folder of the head, or its name.
        data: folder of the data set whose held-out texts were judged.
        command: that judged them.
        model: name of the target; None for the one in the data.

    Raises:
        FileNotFoundError: where the folder has no card.
        OSError: where the disk refuses.
    """
    folder = folders.folder_of(head)
    card, manifest = folder / CARD, Manifest.read(data)
    if not card.is_file():
        raise FileNotFoundError(f"there is no {card}; --card takes the folder of a trained head")
    record = {
        "head": folders.load(folder).digest,
        "target": model or manifest.target.name,
        "data": data.name,
        "data_digest": manifest.digest,
        "data_options": asdict(manifest.options),
        "data_counts": manifest.counts(),
        "command": command,
        "version": draftwood.__version__,
        "kinds": [asdict(each) for each in kinds],
    }
    text = card.read_text(encoding="utf-8")
    section = f"{TITLE}\n\nBy `{command}`.\n{told_of(manifest)}\n\n{table_of(kinds)}\n"
    before, after = text, ""
    if found := SECTION.search(text):
        before, after = text[: found.start()], text[found.end() :]
    told = [part for part in (before.rstrip("\n"), section.rstrip("\n"), after) if part]
    write_file(card, "\n\n".join(told).rstrip("\n") + "\n")
    write_file(folder / RECORD, json.dumps(record, indent=2) + "\n")


def told_of(manifest: Manifest) -> str:
    """Sentence of the card on what data were judged."""
    options, counts = manifest.options, manifest.counts()
    return (
        f"The data are of the mix {options.mix}, seed {options.seed}: {counts['tokens']:,} tokens"
        f" in {counts['texts']:,} texts, {counts['held_out_texts']:,} of them held out."
    )


def table_of(kinds: Sequence[KindFigures]) -> str:
    """Figures by kind as a table of Markdown."""
    rows = [each.row() for each in kinds]
    lines = [list(rows[0]), ["-"] * len(rows[0]), *(list(row.values()) for row in rows)]
    cells = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"|{'|'.join(line)}|" for line in cells)


def rows_of(section: str) -> list[KindFigures]:
    """Figures by kind of the table in a section of a card; other lines are left out.

    Raises:
        ValueError: for a table without rows, and rows of another one.
    """
    lines = [line.strip() for line in section.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip().replace(r"\|", "|") for cell in BAR.split(line)[1:-1]] for line in lines]
    try:
        names, *rows = (line for line in cells if not all(set(each) <= {"-", ":"} for each in line))
        return [KindFigures.of_row(dict(zip(names, row, strict=True))) for row in rows]
    except ValueError as error:
        raise ValueError(
            f"the card's table {TITLE.lstrip('# ')!r} cannot be read ({error}); write it again"
            " with `draftwood train judge HEAD DATA --card`"
        ) from None
