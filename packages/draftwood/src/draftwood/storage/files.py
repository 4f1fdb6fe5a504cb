"""Check paths of files that commands of draftwood build, without reading them."""

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
