"""Sections of a report about protocols of other packages, whose records are their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import entry_points
from pathlib import Path

from draftwood_bench.records.files import is_clean
from draftwood_bench.report.findings import Finding
from draftwood_bench.report.table import Table

REPORTS = "draftwood.reports"
"""Entry points of packages, by protocol: functions from folders to sections. A folder belongs to a
protocol whose name its file of records has, with ``.jsonl`` behind it.
"""


@dataclass(frozen=True)
class Drawing:
    """One of several drawings, of which the page shows one at a time.

    Attributes:
        group: by which it is chosen first.
        label: by which it is chosen then.
        body: HTML of it.
        is_best: True if its group begins with it.
    """

    group: str
    label: str
    body: str
    is_best: bool = False


@dataclass(frozen=True)
class Gallery:
    """Drawings under a title, with what they show in a sentence or two.

    Attributes:
        choices: names of what drawings are chosen by, groups first.
    """

    title: str
    about: str
    drawings: Sequence[Drawing]
    choices: tuple[str, str] = ("Method", "Prompt")

    def html(self) -> str:
        """All drawings; without scripts they stand one below the other. Empty where none is."""
        if not self.drawings:
            return ""
        groups = dict.fromkeys(each.group for each in self.drawings)
        options = "".join(f"<option>{escape(group)}</option>" for group in groups)
        first, second = map(escape, self.choices)
        return (
            f"<h2>{escape(self.title)}</h2><p>{escape(self.about)}</p>"
            f'<div class="trees"><p class="chooser" hidden><label>{first}'
            f" <select>{options}</select></label> <label>{second} <select></select></label></p>"
            f"{''.join(map(self._drawing, self.drawings))}</div>"
        )

    def _drawing(self, each: Drawing) -> str:
        group, label = escape(each.group), escape(each.label)
        marks = f'data-method="{group}" data-step="{group}: {label}" data-label="{label}"'
        marks += " data-best" if each.is_best else ""
        return f'<div class="drawing" {marks}><h3>{group}, {label}</h3>{each.body}</div>'


@dataclass(frozen=True)
class ProtocolSection:
    """Parts of a page about what a protocol measured.

    Attributes:
        headline: its most important result.
        protocol: its name.
        folders: of the records.
        facts: of the run, by name.
        tables: for the page and for Markdown.
        findings: figures.
        galleries: of drawings.
        commits: that measured the records, as ``RunInfo.commit``.
    """

    headline: str
    protocol: str
    folders: Sequence[Path]
    facts: Mapping[str, str]
    tables: Sequence[Table]
    findings: Sequence[Finding] = ()
    galleries: Sequence[Gallery] = field(default=())
    commits: Sequence[str | None] = ()

    @property
    def is_clean(self) -> bool:
        """True if all commits are known, and hold what was measured."""
        return bool(self.commits) and all(map(is_clean, self.commits))

    @property
    def facts_told(self) -> dict[str, str]:
        """Facts of the run, its commits among them."""
        commits = ", ".join(each or "unknown" for each in self.commits) or "unknown"
        return {**self.facts, "commit": commits}

    @property
    def names(self) -> str:
        """Names of the folders."""
        return ", ".join(each.name for each in self.folders)

    def markdown(self) -> str:
        """Facts and tables in Markdown."""
        parts = [f"# {self.names}: {self.protocol}"]
        parts.append("\n".join(f"- {name}: {value}" for name, value in self.facts_told.items()))
        parts += [f"## {table.title}\n\n{table.markdown()}" for table in self.tables]
        return "\n\n".join(parts) + "\n"


Reader = Callable[[Sequence[Path]], Sequence[ProtocolSection]]


def sections(folders: Sequence[Path]) -> tuple[list[ProtocolSection], list[Path]]:
    """Sections of all folders that protocols of other packages wrote, and the folders left over.

    Raises:
        ValueError: for records that are none.
    """
    found, left = list[ProtocolSection](), dict.fromkeys(folders)
    for entry in entry_points(group=REPORTS):
        if own := [each for each in folders if (each / f"{entry.name}.jsonl").is_file()]:
            reader: Reader = entry.load()
            found += reader(own)
            left = {each: None for each in left if each not in own}
    return found, list(left)
