"""Check paths of datastores; ``sources.stored_index`` describes their content."""

from pathlib import Path


def require_datastore(path: Path) -> None:
    """Refuse a path without a file.

    Raises:
        ValueError: for a folder.
        FileNotFoundError: where there is nothing.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a datastore's file")
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no datastore {path}; make it with 'draftwood datastore build', or name"
            " another one"
        )
