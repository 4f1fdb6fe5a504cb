"""Descriptions of methods, read without importing their parts, which takes seconds.

``listings.json`` describes draftwood's own methods, and a file of this name beside an installed
package's module describes that package's. ``make docs`` writes it from the recipes, and a test
compares them. Methods of packages without such a file are imported and asked.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from draftwood.optional import entry_points, install_command
from draftwood.rules import GROUP as RULES
from draftwood.rules import TextRule, text_rule

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from draftwood.drafters.resources import Need
    from draftwood.engine.method import Promise
    from draftwood.methods.composition import MethodSpec

GROUP = "draftwood"
"""Entry points by which installed packages add parts, see ``methods.parts``."""

COMMANDS = "draftwood.command_methods"
"""Entry points of packages whose commands have methods of their own: ``CommandMethod``s, a list."""

ANSWERS = "draftwood.answers"
"""Entry points of packages that name ``methods.answers.AnswersMethod``, one each, by its name."""

FILE = "listings.json"

Form = Literal["chain", "widths", "beams", "best"]
"""Form of a tree.

* ``chain``: so many tokens in a row.
* ``widths``: so many children below each node, level by level.
* ``beams``: so many beams or independent chains, so long.
* ``best``: so many nodes, the best ones, on at most so many levels.
"""

Named = Union[str, "MethodSpec", "Listing"]
"""A method by its name, its recipe, or what that says of itself."""


@dataclass(frozen=True)
class Listing:
    """Description of a method.

    Attributes:
        name: as given to ``--method``.
        summary: one line.
        source: authors, year, arXiv id or address.
        drafter: its name.
        shape: the default one's name; None for drafters that take none.
        nodes: of that shape.
        verifier: its name.
        promise: what it promises of its text.
        needs: what its drafter cannot do without.
        uses: what its drafter takes where it is there.
        drafts_ahead: whether it can draft while the target runs.
        trees: forms of the trees that users may choose for it.
        tree: the default one as users write it; None where no text says it.
    """

    name: str
    summary: str
    source: str
    drafter: str
    shape: str | None
    nodes: int | None
    verifier: str
    promise: "Promise"
    needs: "frozenset[Need]"
    uses: "frozenset[Need]"
    drafts_ahead: bool
    trees: tuple[Form, ...] = ()
    tree: str | None = None

    @property
    def lossless(self) -> bool:
        """True if the text has the distribution that the model gives it."""
        return self.promise == "lossless"

    @classmethod
    def of(cls, recipe: "MethodSpec") -> "Listing":
        """Ask a recipe's parts."""
        from draftwood.methods.trees import forms_of, text_of

        shape, drafter = recipe.shape, recipe.drafter
        return cls(
            **{"name": recipe.name, "summary": recipe.summary, "source": recipe.source},
            **{"drafter": drafter.name, "verifier": recipe.verifier.name},
            shape=None if shape is None else shape.name,
            nodes=None if shape is None else shape.nodes,
            promise=recipe.promise,
            needs=drafter.needs,
            uses=drafter.uses,
            drafts_ahead=drafter.drafts_ahead,
            trees=(forms := forms_of(recipe)),
            tree=text_of(shape) if forms else None,
        )

    def as_json(self) -> dict[str, Any]:
        """In plain types, as ``listings.json`` holds it."""
        return asdict(self) | {"needs": sorted(self.needs), "uses": sorted(self.uses)}


@dataclass(frozen=True)
class CommandMethod:
    """A method that a package's own command runs.

    Attributes:
        name: as the command takes it.
        option: the command with this method, as users type it.
        summary: one line.
        source: authors, year, arXiv id or address.
        promise: what it promises of its text.
    """

    name: str
    option: str
    summary: str
    source: str
    promise: "Promise"


def listings() -> dict[str, Listing]:
    """All methods by name: draftwood's own, then those of installed packages."""
    if all_listed():
        return dict(written_listings())
    from draftwood.methods.parts import known_parts

    return {name: Listing.of(recipe) for name, recipe in known_parts().recipes.items()}


def of_package(package: str) -> tuple[list[Listing], list[TextRule | CommandMethod]]:
    """Methods, rules of sampling and methods of commands that one installed package brings.

    Args:
        package: its name, with or without ``draftwood-``.

    Raises:
        ValueError: where it brings none, or is not installed, with those that do.
    """
    entries = [each for group in (GROUP, RULES, COMMANDS, ANSWERS) for each in entry_points(group)]
    known = sorted({package_of(entry) for entry in entries})
    wanted = next((name for name in (package, f"draftwood-{package}") if name in known), None)
    if wanted is None:
        raise ValueError(
            f"no installed package {package!r} brings methods or rules; these do:"
            f" {', '.join(known) or 'none'}"
        )
    own = [entry for entry in entries if package_of(entry) == wanted]
    listed = [each for entry in own if entry.group == GROUP for each in _listed_by(entry)]
    rules: list[TextRule | CommandMethod] = [
        text_rule(entry.name) for entry in own if entry.group == RULES
    ]
    return listed, [*rules, *_of_commands(own)]


def command_methods() -> list[CommandMethod]:
    """Methods of the commands that installed packages bring."""
    return _of_commands([*entry_points(ANSWERS), *entry_points(COMMANDS)])


def _of_commands(entries: "Sequence[EntryPoint]") -> list[CommandMethod]:
    alone = [entry.load() for entry in entries if entry.group == ANSWERS]
    return [*alone, *(one for e in entries if e.group == COMMANDS for one in e.load())]


def _listed_by(entry: "EntryPoint") -> list[Listing]:
    file = _file_of(entry)
    if file is not None:
        return list(read_listings(file).values())
    return [Listing.of(recipe) for recipe in getattr(entry.load(), "RECIPES", ())]


def package_of(entry: "EntryPoint") -> str:
    """Name of the package that has an entry point."""
    return "an installed package" if entry.dist is None else entry.dist.name


def all_listed() -> bool:
    """True if every installed package describes its methods in a file."""
    return all(map(_file_of, entry_points(GROUP)))


def lossless_names() -> list[str]:
    """Every method that claims to leave the text alone, plain decoding left out."""
    return [each.name for each in listings().values() if each.lossless and each.name != "plain"]


def listing(method: Named) -> Listing:
    """Description of a method; draftwood's own are not imported for it.

    Raises:
        ValueError: for an unknown name, with the nearest ones.
    """
    if isinstance(method, Listing):
        return method
    if not isinstance(method, str):
        return Listing.of(method)
    if (found := written_listings().get(method)) is not None:
        return found
    known = listings()
    if method not in known:
        raise unknown(method, {name: each.source for name, each in known.items()})
    return known[method]


def unknown(method: str, sources: Mapping[str, str]) -> ValueError:
    """Error for a name that no method of this kind has, given the sources of all by name."""
    for entry in entry_points(ANSWERS):
        if entry.name == method:
            other = entry.load().option
            return ValueError(f"method {method!r} writes whole answers: {other!r} runs it alone")
    near = [
        *(name for name, source in sources.items() if f"{method}: ".lower() in source.lower()),
        *get_close_matches(method, sources, n=3, cutoff=0.6),
    ]
    listed = "'draftwood methods' lists those that there are"
    hint = f"did you mean {' or '.join(near)}?" if near else listed
    known = any(entry.value == "draftwood_methods" for entry in entry_points(GROUP))
    more = "" if known else f"; more come with: {install_command('draftwood-methods')}"
    return ValueError(f"there is no method {method!r}; {hint}{more}")


@cache
def written_listings() -> dict[str, Listing]:
    """Methods that are listed in files: draftwood's own, then those of installed packages."""
    files = map(_file_of, entry_points(GROUP))
    others = [read_listings(file) for file in files if file is not None]
    return own_listings() | {name: each for found in others for name, each in found.items()}


@cache
def own_listings() -> dict[str, Listing]:
    """Draftwood's own methods by name, in their order."""
    return read_listings(Path(__file__).with_name(FILE))


def read_listings(file: Path) -> dict[str, Listing]:
    """Read a file of listings, by name."""
    rows = json.loads(file.read_text(encoding="utf-8"))
    sets = ("needs", "uses")
    return {
        row["name"]: Listing(
            **row
            | {each: frozenset(row[each]) for each in sets}
            | {"trees": tuple(row.get("trees", ()))}
        )
        for row in rows
    }


def _file_of(entry: "EntryPoint") -> Path | None:
    """The listings of an installed package; None where it has none. Nothing is imported."""
    from importlib.util import find_spec

    spec = None if "." in entry.value or ":" in entry.value else find_spec(entry.value)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    file = Path(spec.origin).with_name(FILE)
    return file if file.is_file() else None
