"""The Containerfile serves a mounted GGUF file, its user without rights and its files read-only."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood
from checkout import ROOT
from container import instructions
from draftwood.testing import tiny_llama
from gguf_writing import TOKENS, write_gguf
from wheels import best_level

TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
PROGRAMS = ("unshare", "setpriv", "chroot", "mount", "apt-get")


def test_the_file_is_read_whole() -> None:
    found = instructions(TEXT)
    assert [word for word, _ in found].count("FROM") == 2
    last = dict(found[[word for word, _ in found].index("FROM", 2) :])
    user = last["USER"].partition(":")[0]
    assert user.isdecimal()  # a name cannot be checked to be another than root's
    assert int(user) > 0
    assert last["ENTRYPOINT"] == '["draftwood", "serve", "--host", "0.0.0.0"]'
    assert "API_KEY" not in " ".join(rest for _, rest in found)  # none is baked in


def why_not() -> str | None:
    if not os.environ.get("DRAFTWOOD_TEST_CONTAINER"):
        return "it installs a compiler over this machine's files; 'make test-container' runs it"
    if sys.platform != "linux" or os.geteuid() != 0:
        return "layers over this machine's files are for root on Linux"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True
    )
    return "this machine makes no namespaces" if tried.returncode else None


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_it_serves_a_mounted_file_without_rights(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    model = tmp_path / "model.gguf"
    write_gguf(model, tiny_llama(0, layers=2, vocab=len(TOKENS), context=256))
    (tmp_path / "work").mkdir()
    words = [str(ROOT), str(model), str(tmp_path / "work"), f"LEVELS={best_level()}"]
    program = [sys.executable, str(Path(__file__).with_name("container.py")), *words]
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", *program]
    told = {**os.environ, "CXXFLAGS": "-O0"}  # compiled quickly
    done = subprocess.run(command, capture_output=True, env=told)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout)
    said, status = found["keyless"]
    assert status == 2
    assert said.count("\n") == 1
    assert "DRAFTWOOD_API_KEY" in said
    assert found["healthy"], found["said"]
    wanted = draftwood.load(str(model), method="plain").generate(
        "Hi", raw=True, max_new_tokens=12, temperature=0
    )
    assert found["answer"] == [200, wanted.text]
    assert found["stranger"] == [401, ""]
    assert all(found[place] for place in ("root", "model", "temporary"))  # could not be written
    user = {line.split()[0]: line.split()[1] for line in found["user"]}
    nothing = "0" * 16
    assert user == {"Uid:": "10001", "CapEff:": nothing, "CapBnd:": nothing, "NoNewPrivs:": "1"}
    assert found["exit"] == 0
