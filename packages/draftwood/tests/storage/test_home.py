"""The folder where draftwood keeps what it makes, for users with a home and without one."""

from pathlib import Path

import pytest

from draftwood.storage.home import expanded, home

pwd = pytest.importorskip("pwd")


def test_it_is_the_one_that_is_named_or_in_the_user_s_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DRAFTWOOD_HOME", "")
    assert home() == tmp_path / ".cache" / "draftwood"
    monkeypatch.setenv("DRAFTWOOD_HOME", "~/models")
    assert home() == tmp_path / "models"
    monkeypatch.chdir(tmp_path)
    for named in ("some", "./~", ""):
        monkeypatch.setenv("DRAFTWOOD_HOME", named or ".")
        assert home() == tmp_path / named


@pytest.mark.parametrize("named", ["", "~", "~/models", "~nobody-of-this-name/models"])
def test_without_a_home_the_error_names_the_variable(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(user: object) -> None:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setenv("DRAFTWOOD_HOME", named)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"no home folder for the ~ of ~.*; set DRAFTWOOD_HOME to"):
        home()
    assert expanded("~/text") == Path("~/text")
