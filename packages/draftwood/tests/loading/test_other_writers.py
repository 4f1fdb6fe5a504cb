"""Models of packages: refused where they write in another way than token by token, and in types
that what is shipped does not hold.
"""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from draftwood.loading import names
from draftwood.loading.gguf_blocks import is_blocks_folder
from draftwood.loading.models import load_model
from draftwood.loading.names import (
    DTYPES,
    PICTURES,
    WRITERS,
    other_way,
    require_token_by_token,
    shipped_models,
)
from draftwood.native.formats import INTEGERS
from draftwood.native.library import available


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


@pytest.mark.parametrize("dtype", [None, *INTEGERS, *DTYPES])
@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_runs_in_every_type_that_is_not_refused(
    name: str, dtype: str | None
) -> None:
    folder = shipped_models()[name]
    is_picture, in_blocks = (folder / PICTURES).is_file(), is_blocks_folder(folder)
    if is_picture:
        refusal = "is a model of pictures"
    elif in_blocks and not (available() and dtype in (None, "int8", "float32")):
        refusal = "which run in int8 or float32, in draftwood's C"
    else:
        assert load_model(name, dtype, "cpu").model.vocab_size > 0
        return
    with pytest.raises(ValueError, match=refusal):
        load_model(name, dtype, "cpu")
