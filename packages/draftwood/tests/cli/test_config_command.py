"""Defaults of options live in a file; the command line wins; what is wrong in it is one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from command import refused, run
from draftwood.cli.main import main
from draftwood.cli.toml_text import dump, parse, with_value
from draftwood.heads import folder
from draftwood.loading.models import load_model
from draftwood.native import library
from tiny_heads import tiny_eagle


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library.available()  # compiled in the usual home
    monkeypatch.delenv("DRAFTWOOD_CONFIG", raising=False)
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "config.toml"


def told(*arguments: str) -> str:
    made = run("config", *arguments)
    assert made.exit_code == 0, made.output
    return made.stdout


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_values_may_be_negative(file: Path) -> None:
    told("set", "presence-penalty", "-0.5")
    assert "-0.5" in told("show")
    assert "nope is no option of" in refused("config", "set", "--nope", "3")


def test_the_file_lies_in_the_home_unless_another_is_named(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told("path") == f"{file}\n"
    assert told() == told("show") == ""
    other = tmp_path / "other.toml"
    monkeypatch.setenv("DRAFTWOOD_CONFIG", str(other))
    assert told("path") == f"{other}\n"
    said = refused("generate", "hi", "--model", "nowhere")
    assert said.endswith("or unset DRAFTWOOD_CONFIG")
    assert f"names {other}, which is not there" in said
    told("set", "seed", "3")
    assert other.read_text() == "seed = 3\n"
    assert not file.exists()


def test_defaults_are_those_of_the_command_and_typed_options_win(file: Path, target: str) -> None:
    def tokens(*arguments: str) -> int:
        made = run("generate", "hello", "--json", *arguments)
        assert made.exit_code == 0, made.output
        return len(json.loads(made.stdout)["token_ids"])

    told("set", "model", target)
    told("set", "max-new-tokens", "5")
    assert tokens() == 5
    told("set", "generate.max-new-tokens", "7")
    assert tokens() == 7
    assert tokens("--max-new-tokens", "3") == 3
    assert "cut after 5 tokens" in run("chat", given="hello\n").stderr
    told("unset", "generate.max-new-tokens")
    assert tokens() == 5
    told("unset", "model")
    assert told() == "max-new-tokens = 5\n"


def test_a_mark_of_byte_order_is_no_part_of_the_file(file: Path) -> None:
    write(file, "\ufeffseed = 4\n")
    assert told("show") == "seed = 4\n"
    told("set", "seed", "5")
    assert parse(file.read_text(encoding="utf-8")) == {"seed": 5}


def test_processes_that_set_values_at_once_lose_none(file: Path) -> None:
    told("path")
    environment = {**os.environ, "DRAFTWOOD_HOME": str(file.parent)}
    keys = ("chat.seed", "generate.top-k", "compare.seed", "seed")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "draftwood.cli.main", "config", "set", key, "3"], env=environment
        )
        for key in keys
    ]
    assert [each.wait(timeout=120) for each in running] == [0] * len(keys)
    assert {line.partition(" = ")[0] for line in told("show").splitlines()} == {*keys}


def test_options_of_recipes_have_defaults_too(file: Path) -> None:
    told("set", "train.lm.minutes", "2")
    assert told("show") == "train.lm.minutes = 2.0\n"
    assert "is no option of 'draftwood train lm'" in refused("config", "set", "train.lm.mins", "2")


def test_a_command_s_table_is_no_value_of_a_shared_option(file: Path, target: str) -> None:
    from draftwood.cli.configuration import SHARED, KnownCommands, defaults, options_of

    with main.make_context("draftwood", ["generate"]) as context:
        commands = main.list_commands(context)
        flags = {flag for each in KnownCommands.of(context).shared() for flag in options_of(each)}
        both = sorted(flags & {*commands})
        assert {"datastore", "methods"} <= {*both}
        for name in both:
            write(file, f"[{name}]\n")
            for command in set(SHARED) & set(commands):
                assert defaults(context, command) == {}
    told("set", "datastore.build.output", "notes.store")
    made = run("generate", "hello", "--model", target, "--max-new-tokens", "2", "--json")
    assert made.exit_code == 0, made.output


def test_a_value_and_a_table_of_one_name_are_told_apart(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    told("set", "datastore.build.output", "notes.store")
    line = refused("config", "set", "datastore", str(tmp_path / "notes"))
    assert "has a table datastore, beside which TOML takes no other" in line
    assert "unset datastore' makes room for datastore" in line
    told("unset", "datastore")
    told("set", "datastore", str(tmp_path / "notes"))
    line = refused("config", "set", "datastore.build.output", "notes.store")
    assert "has a value datastore" in line
    assert "makes room for datastore.build.output" in line


def test_texts_of_files_are_read_at_once(file: Path, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "brief.txt").write_text("Be brief.")
    line = refused("config", "set", "generate.system", "@nofile.txt")
    assert "generate.system is refused: there is no file nofile.txt" in line
    line = refused("config", "set", "generate.json-schema", str(tmp_path / "list.json"))
    assert "generate.json-schema is refused: the JSON schema is no JSON: a schema is an" in line
    told("set", "chat.system", f"@{tmp_path}/brief.txt")
    assert told("show") == f'chat.system = "@{tmp_path}/brief.txt"\n'


def kept(file: Path, text: str, *typed: str) -> dict[str, Any]:
    """Defaults that are left beside what is typed, by parameter."""
    from draftwood.cli.configuration import defaults

    write(file, text)
    with main.make_context("draftwood", [*typed], obj=["--debug", *typed]) as context:
        return defaults(context, typed[0])


@pytest.mark.parametrize(
    ("text", "typed", "left"),
    [
        ("file = 'p.txt'", ("Hi",), set()),
        ("file = 'p.txt'", ("--seed", "1"), {"file"}),
        ("json-schema = 's.json'", ("Hi", "--grammar", "p.lark"), set()),
        ("grammar = 'p.lark'", ("Hi", "--json-schema=s.json"), set()),
        ("json-schema = 's.json'", ("Hi", "--json-schema", "s.json"), {"json_schema"}),
        ("min-tokens = 5\nseed = 1", ("Hi", "--grammar", "p.lark"), {"seed"}),
        ("json-schema = 's.json'", ("Hi", "--min-tokens", "2"), set()),
        ("min-tokens = 5", ("Hi", "--max-new-tokens", "3"), set()),
        ("min-tokens = 5", ("Hi", "--max-new-tokens", "5"), {"min_tokens"}),
        ("min-tokens = 5", ("Hi", "--max-new-tokens", "few"), {"min_tokens"}),
        ("max-new-tokens = 5", ("Hi", "--min-tokens", "6"), set()),
        ("raw = true", ("Hi", "--system", "x"), set()),
        ("system = 'x'", ("--raw", "Hi"), set()),
        ("show-tree = true", ("Hi", "--answers", "2"), set()),
        ("overlap = true\ntree = '4x3'", ("Hi", "--method", "lookup"), set()),
        ("tree = '4x3'", ("Hi", "--method", "rsd-s"), {"tree"}),
        ("method = 'lookup'", ("Hi", "--tree", "4x3"), set()),
        ("method = 'lookup'", ("Hi", "--seed", "3"), {"method"}),
        ("show = true\nshifted = true", ("Hi", "--method", "lookup"), set()),
        ("datastore = 'p.txt'", ("Hi", "--method", "lookup"), set()),
        ("datastore = 'p.txt'", ("Hi", "--method", "auto"), {"datastore"}),
        ("method = 'lookup'", ("Hi", "--datastore", "p.txt"), set()),
        ("tree = '4x3'", ("Hi", "--method", "lokup"), {"tree"}),
    ],
)
def test_defaults_that_exclude_what_is_typed_are_left_out(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    typed: tuple[str, ...],
    left: set[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("p.txt", "p.lark"):
        (tmp_path / name).write_text("start: 'a'")
    (tmp_path / "s.json").write_text("{}")
    assert kept(file, f"[generate]\n{text}\n", "generate", *typed).keys() == left


@pytest.mark.parametrize(
    ("text", "typed", "left"),
    [
        ("[draw]\nshow = true", "draw cat --json", {}),
        ("[draw]\njson = true", "draw cat --show", {}),
        ("[draw]\nshow = true", "draw cat --method plain", {"show": True}),
        ("[plan]\nhardware = 'a'\nmodel = 'b'", "plan --bandwidth 8", {"model": "b"}),
        ("[plan]\nparameters = '7B'\nbits = 8", "plan --model b", {"bits": 8}),
        ("[serve]\nreplicas = 2", "serve m --learn", {}),
        ("[serve]\nlearn = true\ntp = 1", "serve m --replicas 2", {}),
        ("[tune]\nmethod = 'auto'\nseconds = 3", "tune --phases 1,8", {"seconds": 3}),
        ("[train.eagle]\nsteps = 5", "train eagle a b --minutes 1", {"eagle": {}}),
        ("[train.images]\nsteps = 5", "train images a b --minutes 1", {"images": {}}),
        (
            "[train.diffusion]\ntokens = '5k'",
            *("train diffusion a b --minutes 1", {"diffusion": {"tokens": "5k"}}),
        ),
        ("[train.images]\nsteps = 5", "train eagle a b --minutes 1", {"images": {"steps": 5}}),
        ("[bench.show]\njson = true", "bench show a --markdown", {"show": {}}),
    ],
)
def test_what_is_typed_wins_in_every_command(
    file: Path, text: str, typed: str, left: dict[str, Any]
) -> None:
    assert kept(file, text, *typed.split()) == left


def test_every_training_of_a_drafter_takes_one_length() -> None:
    """Commands that packages add are found by their options."""
    from draftwood.cli.typed import RECIPES

    context = click.Context(main)
    train: Any = main.get_command(context, "train")
    found = set[str]()
    for name in train.list_commands(context):
        command = train.get_command(context, name)
        if "cpu_minutes" in {each.name for each in command.get_params(click.Context(command))}:
            found.add(name)
    assert found == {*RECIPES}


def test_an_error_tells_that_a_default_of_the_file_is_at_fault(file: Path) -> None:
    write(file, "[draw]\nshow = true\njson = true\n[serve]\nlearn_to = 'x'\n")
    told_of = f"(--show is set in {file}; 'draftwood config unset draw.show' takes it out)"
    assert told_of in refused("draw", "cat")
    assert "config unset serve.learn_to'" in refused("serve", "smollm2-135m")
    assert "config unset" not in refused("draw", "cat", "--show", "--output", "a.jpg")
    write(file, "seed = 1\n[train.images]\nclassifier-only = true\nexport-only = true\n")
    line = refused("train", "images", "a", "b")
    for each in ("classifier-only", "export-only"):
        assert f"'draftwood config unset train.images.{each}' takes it out" in line
    assert line.endswith("train images --help')")


def test_drafts_of_the_file_are_left_out_where_a_typed_method_has_no_use_for_them(
    file: Path, target: str, draft: str, tmp_path: Path
) -> None:
    head = str(folder.save(tmp_path / "eagle", tiny_eagle(load_model(target).model), "# Nothing"))
    ahead = f"draft-model = [{json.dumps(head)}, {json.dumps(draft)}]\n"
    assert kept(file, ahead, "generate", "Hi", "--method", "lookup") == {}
    assert kept(file, ahead, "compare", "Hi", "--methods", "lookup, plain") == {}
    assert kept(file, ahead, "generate", "Hi", "--method", "rsd-s")["draft_model"] == [draft]
    assert kept(file, ahead, "generate", "Hi", "--method", "eagle")["draft_model"] == [head]
    assert kept(file, ahead, "compare", "Hi", "--methods", "eagle,rsd-s")["draft_model"] == [
        *(head, draft)
    ]
    assert kept(file, ahead, "chat", "--method", "lookup")["draft_model"] == [head, draft]
    other = "method = 'eagle'\n"
    assert kept(file, other, "generate", "Hi", "--draft-model", head) == {"method": "eagle"}
    assert kept(file, other, "generate", "Hi", "--draft-model", draft) == {}
    write(file, f"method = 'eagle'\ndraft-model = {json.dumps(head)}\nmodel = {json.dumps(target)}")
    made = run("generate", "Hi", "--method", "lookup", "--max-new-tokens", "2")
    assert made.exit_code == 0, made.output


@pytest.mark.parametrize(
    ("text", "typed", "left"),
    [
        ("resume = 'one'", ("--save", "two"), set()),
        ("save = 'one'", ("--resume",), set()),
        ("save = 'one'", ("--resume=two",), set()),
        ("save = 'one'", ("--system", "x"), {"save"}),
    ],
)
def test_a_typed_chat_wins(file: Path, text: str, typed: tuple[str, ...], left: set[str]) -> None:
    assert kept(file, f"[chat]\n{text}\n", "chat", *typed).keys() == left


def test_every_kind_of_value(file: Path, tmp_path: Path) -> None:
    (tmp_path / "p.lark").write_text("start: 'a'")
    told("set", "generate.grammar", str(tmp_path / "p.lark"))
    told("set", "chat.system", 'Say "hi"\n\tto \\ all.')
    told("set", "generate.stop", "END", "stop")
    told("set", "generate.temperature", "0.5")
    told("set", "generate.raw", "true")
    told("set", "draft_model", "none")
    told("set", "datastore.build.model", "stories-15m")
    told("set", "tune.method", "auto, suffix")
    told("set", "chat.model", "org/of-the-hub")
    told("set", "serve.method", "small=lookup")
    found = {
        "draft-model": ["none"],
        "chat": {"system": 'Say "hi"\n\tto \\ all.', "model": "org/of-the-hub"},
        "generate": {
            "grammar": str(tmp_path / "p.lark"),
            "stop": ["END", "stop"],
            "temperature": 0.5,
            "raw": True,
        },
        "datastore": {"build": {"model": "stories-15m"}},
        "tune": {"method": ["auto, suffix"]},
        "serve": {"method": ["small=lookup"]},
    }
    assert parse(file.read_text()) == json.loads(told("show", "--json")) == found
    assert 'generate.stop = ["END", "stop"]' in told("show")
    from draftwood.cli.configuration import defaults
    from draftwood.cli.generate import generate as command

    with main.make_context("draftwood", ["generate"]) as context:
        context.default_map = {"generate": defaults(context, "generate")}
        with command.make_context("generate", ["hi"], parent=context) as own:
            assert (own.params["stop"], own.params["raw"]) == (("END", "stop"), True)
            assert own.params["grammar"] == "start: 'a'"


def test_values_of_the_file_written_by_hand(file: Path, target: str) -> None:
    write(file, f"max_new_tokens = 4 # mine\nmodel = {json.dumps(target)}\n[compare]\nseed = 1\n")
    made = run("generate", "hello", "--json")
    assert len(json.loads(made.stdout)["token_ids"]) == 4
    told("set", "compare.seed", "2")
    told("set", "chat.system", "one line\u2028another")
    told("set", "chat.seed", "9")
    text = file.read_text(encoding="utf-8")
    assert "max_new_tokens = 4 # mine" in text
    assert parse(text)["compare"] == {"seed": 2}
    assert parse(text)["chat"]["system"] == "one line\u2028another"
    told("unset", "chat.system")
    told("unset", "max-new-tokens")
    told("unset", "compare")
    assert parse(file.read_text()) == {"model": target, "chat": {"seed": 9}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = = 1", "is no TOML: Invalid value (at line 1, column 5); mend that line"),
        ("seed = 1\nseed = 2\n\n", "(at line 2"),
        ("[generate", "is no TOML"),
        ("temprature = 1", "temprature is no option of generate, chat"),
        ("temprature = 1", "(did you mean temperature?); 'draftwood config unset temprature'"),
        (
            "[generate]\nsede = 1",
            "generate.sede is no option of 'draftwood generate' (did you mean",
        ),
        ("[generat]\nseed = 1", "generat is no command of draftwood (did you mean generate?)"),
        ("generate = 3", "generate is no option of"),
        ("[generate.inner]\nseed = 1", "generate.inner is no command of draftwood"),
        ("temperature = 'hot'", "temperature is refused: 'hot' is not a valid float"),
        ("[generate]\ntop-p = 7", "generate.top-p is refused: 7"),
        ("[generate]\nraw = 1", "generate.raw takes true or false, not 1"),
        ("[generate]\nseed = true", "generate.seed takes a text or a number, not True"),
        ("[generate]\nseed = [1]", "generate.seed takes a text or a number, not [1]"),
        ("[generate]\nseed = 1979-05-27", "generate.seed takes a text or a number"),
        ("[generate]\ngrammar = 'nowhere'", "generate.grammar is refused: cannot read nowhere"),
        ("[generate]\nhelp = true", "generate.help is no option of 'draftwood generate'"),
    ],
)
def test_a_broken_file_is_one_line(file: Path, text: str, said: str) -> None:
    write(file, text)
    for arguments in (("generate", "hi"), ("config",), ("config", "show")):
        line = refused(*arguments)
        assert line.startswith(f"draftwood: error: {file}")
        assert said in line


def test_a_file_that_is_no_text(file: Path) -> None:
    write(file, "")
    file.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in refused("generate", "hi")
    assert "is not UTF-8 text" in refused("config", "set", "seed", "1")


def test_a_wrong_key_can_be_taken_out_and_other_commands_work(file: Path) -> None:
    write(file, "temprature = 1\n[nosuch]\na = 1\n[serve]\nnever = 2\n")
    assert run("methods").exit_code == 0
    told("unset", "temprature")
    told("unset", "nosuch")
    assert "serve.never is no option" in refused("config")
    told("unset", "serve.never")
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("set", "temprature", "1"), "temprature is no option of generate"),
        (("set", "generate.sede", "1"), "did you mean seed?"),
        (("set", "nosuch.seed", "1"), "nosuch is no command"),
        (("set", "nonsense", "1"), ", draft-model, "),
        (("set", "generate.zzz", "1"), "generate.zzz is no option of 'draftwood generate' (there"),
        (("set", "method", "sufix"), "did you mean suffix"),
        (("set", "compare.methods", "auto,sufix"), "did you mean suffix"),
        (("set", "model", "smolm2-135m"), "did you mean smollm2-135m"),
        (("set", "serve.draft-model", "a=nowhere"), "no model is named 'nowhere'"),
        (("set", "draft_model", "none", "./nowhere"), "there is no folder and no file ./nowhere"),
        (("set", "dtype", "int9"), "dtype is one of int8"),
        (("set", "datastore", "nowhere.texts"), "nowhere.texts"),
        (("set", "", "1"), "is no option of"),
        (("set", "model", ""), "'draftwood config unset model' takes a default back"),
        (("set", "draft_model", "none", ""), "draft_model takes a name or a path, got an empty"),
        (("set", "datastore", ""), "got an empty text"),
        (("set", "adapter", ""), "got an empty text"),
        (("set", "bench.cost.output", ""), "got an empty text"),
        (("set", "method", ""), "there is no method ''"),
        (("set", "tune.seconds", "inf"), "tune.seconds is refused: it takes a finite number"),
        (("set", "plan.bandwidth", "nan"), "nan is no number"),
        (("set", "seed", "soon"), "seed is refused: 'soon' is not a valid integer"),
        (("set", "seed", "1", "2"), "seed takes one value"),
        (("set", "generate.raw", "maybe"), "takes true or false, not 'maybe'"),
        (("set", "threads", "0"), "threads is refused: 0 is not in the range"),
        (("set", "generate.prompt", "hi"), "generate.prompt is no option of"),
        (("set", "seed"), "Missing argument 'VALUE...'"),
        (("set", "generate.temperature", "nan"), "temperature must be 0 (the likeliest token) or"),
        (("set", "generate.temperature", "1e400"), "got inf"),
        (("set", "generate.stop", ""), "a stop string must not be empty"),
        (("set", "models.json", "true"), "models.json has no effect: 'models' takes no defaults"),
        (("unset", "seed"), "does not set seed; it sets nothing"),
    ],
)
def test_what_cannot_be_set_is_refused(file: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("config", *arguments)
    assert not file.exists()


def test_a_number_without_end_in_the_file_is_refused(file: Path) -> None:
    write(file, "[tune]\nseconds = inf\n")
    for arguments in (("config", "show", "--json"), ("tune",)):
        line = refused(*arguments)
        assert "tune.seconds is refused: it takes a finite number, got inf; 'draftwood" in line


def test_an_option_of_another_command_has_its_own_bounds(file: Path) -> None:
    told("set", "plan.context", "0")
    assert file.read_text() == "[plan]\ncontext = 0\n"


def test_a_broken_file_is_not_written_over(file: Path) -> None:
    write(file, "a = = 1")
    assert "mend that line" in refused("config", "set", "seed", "1")
    assert "mend that line" in refused("config", "unset", "seed")
    assert file.read_text() == "a = = 1"


def test_a_folder_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CONFIG", str(tmp_path / "file" / "config.toml"))
    said = refused("config", "set", "seed", "1")
    assert "set DRAFTWOOD_CONFIG to another" in said


def test_nothing_is_read_from_an_empty_device_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_CONFIG", os.devnull)
    assert told() == ""
    monkeypatch.setattr("draftwood.storage.atomic.os.replace", None)
    assert "is no file that can be changed" in refused("config", "set", "seed", "1")


def test_the_file_is_its_owner_s_and_links_to_it_stay(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("set", "serve.api-key", "secret")
    assert file.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    monkeypatch.setenv("DRAFTWOOD_CONFIG", str(link))
    told("set", "seed", "1")
    assert link.is_symlink()
    assert parse(file.read_text()) == {"seed": 1, "serve": {"api-key": ["secret"]}}


HAND_WRITTEN = """# top
seed = 1  # kept
# wrapped\u2028 as an editor did

[generate] # of texts
temperature = 0.5
stop = [
  "a",
  "b",
]

[bench.cost]
threads = 2
"""


def without_empty(table: dict[str, Any]) -> dict[str, Any]:
    """Tables that hold something."""
    inner = {key: without_empty(v) if isinstance(v, dict) else v for key, v in table.items()}
    return {key: each for key, each in inner.items() if each != {}}


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        (("seed",), 2, ["seed = 2"]),
        (("model",), "x", ['model = "x"', "# top"]),
        (("generate", "top-p"), 0.5, ["top-p = 0.5", "# of texts", "# kept"]),
        (("generate", "temperature"), None, ["# top", "seed = 1  # kept"]),
        (("chat", "seed"), 3, ["[chat]", "seed = 3", "# wrapped\u2028 as an editor did"]),
        (("bench", "cost"), None, ["# top", "# kept", "[generate] # of texts"]),
        (("bench", "cost", "threads"), None, ["# top", "# kept", "[generate] # of texts"]),
        (("generate",), None, ["# top", "# kept", "[bench.cost]"]),
        (("generate", "stop"), ["c"], ['stop = ["c"]', "# of texts", "# kept"]),
        (("generate", "stop"), None, ["# of texts", "temperature = 0.5\n\n[bench.cost]"]),
        (("a key", "é"), True, ['["a key"]', '"é" = true']),
    ],
)
def test_a_value_is_changed_and_the_rest_stays(
    path: tuple[str, ...], value: object, lines: list[str]
) -> None:
    after = with_value(HAND_WRITTEN, path, value)
    wanted = parse(HAND_WRITTEN)
    table = wanted
    for part in path[:-1]:
        table = table.setdefault(part, {})
    if value is None:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    assert parse(after) == without_empty(wanted)
    for line in lines:
        assert line in after


@pytest.mark.parametrize("text", ["", 'a"b\\c', "\x00\x1f\x7f", "é\n\t狐", "'''", "#[x]"])
def test_texts_come_back_as_they_were(text: str) -> None:
    tables = {"key": text, "list": [text, text], "inner": {"deep": {text or "k": text}}}
    assert parse(dump(tables)) == tables
