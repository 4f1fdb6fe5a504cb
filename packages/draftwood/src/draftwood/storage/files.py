"""Check paths of files that commands of draftwood build, and resolve them, without reading."""

from pathlib import Path


def require_file(path: Path, kind: str) -> None:
    """Refuse a path without a file.

    Args:
        kind: of file, and the command that builds it.

    Raises:
        ValueError: for a folder.
        FileNotFoundError: where there is nothing.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a {kind}'s file")
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {kind} {path}; make it with 'draftwood {kind} build', or name another one"
        )


def absolute(name: str) -> str:
    """A path that holds in other folders too; what is no path here stays as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
