"""Models that a package knows to write in another way than token by token are refused."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from draftwood.loading import names
from draftwood.loading.names import WRITERS, other_way, require_token_by_token


def fills_masks(folder: Path) -> tuple[str, str] | None:
    return ("it fills masks; name a rule", "a-rule") if folder.name == "masks" else None


def test_a_package_says_how_a_folder_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EntryPoint("some", f"{__name__}:fills_masks", WRITERS)]
    monkeypatch.setattr(names, "entry_points", lambda group: found if group == WRITERS else [])
    require_token_by_token("a", Path("plain"))
    require_token_by_token("a", None)
    with pytest.raises(ValueError, match="b does not write token by token: it fills masks; name"):
        require_token_by_token("b", Path("masks"))
    assert other_way(Path("masks")) == ("it fills masks; name a rule", "a-rule")
