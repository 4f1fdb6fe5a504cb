"""Places that trainings write their models to."""

from pathlib import Path


def require_output(folder: Path, mark: str, what: str) -> None:
    """Refuse an output folder that holds something else than a training would replace.

    Args:
        mark: a file that such a folder has.
        what: it would hold.

    Raises:
        ValueError: for such a folder, and for a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / mark).is_file():
        raise ValueError(f"{folder} holds something else than {what}; name another folder")
