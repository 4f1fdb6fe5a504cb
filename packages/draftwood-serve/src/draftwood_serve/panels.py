"""Further pages, which installed packages bring by entry points of ``draftwood.panels``.

An entry's name is the page's, its value a module whose folder holds ``NAME.html`` and what that
page asks for: scripts, which may import those of this server, and styles.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from draftwood.optional import entry_points

GROUP = "draftwood.panels"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
"""Media types of files that are served, by their endings."""


@cache
def panel_files() -> dict[str, tuple[Path, str]]:
    """Files of all panels and their media types, by the path under which a browser asks for them.

    None of them is secret: a browser requests them before it can send a key.
    """
    found = dict[str, tuple[Path, str]]()
    for entry in entry_points(GROUP):
        spec = find_spec(entry.value)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).iterdir()):
                name = path.stem if path.suffix == ".html" else path.name
                if path.suffix in KINDS:
                    found[f"/{name}"] = (path, KINDS[path.suffix])
    return found


def panel_names() -> list[str]:
    """Names of the pages, to which others lead."""
    return [entry.name for entry in entry_points(GROUP) if f"/{entry.name}" in panel_files()]
