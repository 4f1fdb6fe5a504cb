"""Prompts from files, the system message, the context and threads of a text."""

import json
import os
from pathlib import Path

import pytest

from command import refused, run
from draftwood.cli.text_files import with_files
from draftwood.native import threads


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fox.txt").write_text("hello\n", encoding="utf-8")
    (tmp_path / "my notes.md").write_text("@fox.txt stays", encoding="utf-8")
    (tmp_path / "plain").write_text("world", encoding="utf-8")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "src").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("@fox.txt", "hello"),
        ("what is (in) @fox.txt?", "what is (in) hello?"),
        ("@./fox.txt, @plain and @fox.txt", "hello, world and hello"),
        ('@"my notes.md"', "@fox.txt stays"),
        ("write @alice or a@fox.txt", "write @alice or a@fox.txt"),
        ("@property and @app.get('/x')", "@property and @app.get('/x')"),
        ("@@fox.txt, @@property, @@", "@fox.txt, @property, @"),
        ("a lone @ and @, too", "a lone @ and @, too"),
        ("@src is a word", "@src is a word"),
    ],
)
def test_words_that_name_files_are_replaced(here: Path, prompt: str, text: str) -> None:
    assert with_files(prompt) == text


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("@nowhere.txt", "there is no file nowhere.txt; @ takes a file, and @@nowhere.txt stands"),
        ("see @a/b!", "there is no file a/b;"),
        ('@"no notes"', "there is no file no notes;"),
        ("@src/", "src/ is a folder;"),
        ("@bytes.txt", "bytes.txt is not UTF-8 text"),
        (f"@{'long' * 2000}.txt", "there is no file long"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(here: Path, prompt: str, told: str) -> None:
    assert told in refused("generate", prompt)


def test_a_file_without_permission(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **options: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ValueError, match=r"cannot read fox\.txt: Permission denied"):
        with_files("@fox.txt")


def texts(target: str, *arguments: str) -> str:
    made = run("generate", *arguments, "--model", target, "--max-new-tokens", "8", "--json")
    assert made.exit_code == 0, made.output
    return json.loads(made.stdout)["text"]


def test_the_prompt_of_a_file_is_the_prompt(here: Path, target: str) -> None:
    typed = texts(target, "hello")
    assert texts(target, "--file", "fox.txt") == typed
    assert texts(target, "@fox.txt") == typed
    marked = here / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbfhello")
    assert texts(target, "--file", "marked.txt") == typed
    assert texts(target, "--file", "my notes.md") == texts(target, "@@fox.txt stays")


def test_one_prompt_is_wanted(here: Path) -> None:
    assert "Missing argument 'PROMPT'" in refused("generate")
    assert "leave PROMPT out" in refused("generate", "hi", "--file", "fox.txt")
    assert "cannot read nowhere" in refused("generate", "--file", "nowhere")
    assert "not UTF-8" in refused("generate", "--file", "bytes.txt")


def test_the_model_is_told_the_system_message(here: Path, target: str) -> None:
    import draftwood

    told = [{"role": "system", "content": "hello"}, {"role": "user", "content": "hi"}]
    lm = draftwood.load(target, method="auto")
    wanted = lm.generate(told, max_new_tokens=8).text
    assert texts(target, "hi", "--system", "@fox.txt") == wanted != texts(target, "hi")


def test_a_system_message_without_a_place(mute: str, target: str, monkeypatch) -> None:
    said = refused("generate", "hi", "--system", "hello", "--model", mute)
    assert "has no chat template, which --system needs" in said
    for raw in (("generate",), ("solve",), ("collaborate", "--leader", target, "--inexact")):
        said = refused(*raw, "hi", "--system", "hello", "--raw")
        assert "--system belongs to a chat; leave --raw out" in said
    strict = Path(target).parent / "strict"
    if not strict.exists():
        strict.mkdir()
        for file in Path(target).iterdir():
            (strict / file.name).write_bytes(file.read_bytes())
        template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}"
        (strict / "chat_template.jinja").write_text(template + "{% endif %}hello")
    for command in (("generate", "hi"), ("chat",)):
        said = refused(*command, "--system", "hello", "--model", str(strict))
        assert "takes no system message (no system); write it into the prompt" in said


def test_the_context_limits_prompt_and_answer(target: str) -> None:
    given = ("generate", "hello", "--model", target, "--raw", "--json")
    made = json.loads(run(*given, "--context", "12", "--max-new-tokens", "100").stdout)
    assert len(made["token_ids"]) == 12 - len("hello")
    assert made["finish_reason"] == "length"
    whole = json.loads(run(*given, "--max-new-tokens", "20").stdout)
    assert whole["text"].startswith(made["text"])
    most = json.loads(run(*given, "--context", "1000", "--max-new-tokens", "300").stdout)
    assert len(most["token_ids"]) == 256 - len("hello") + 1  # the model's own is never passed
    told = refused(*given, "--context", "5")
    assert "has 5 tokens, and the option context keeps prompt and answer to 5; raise it ab" in told
    long = ("generate", "a" * 300, "--model", target, "--raw", "--context", "9")
    assert "the model's context is 256; shorten the prompt" in refused(*long)
    assert "not in the range" in refused(*given, "--context", "1")


def test_a_chat_knows_its_context(target: str) -> None:
    options = ("chat", "--model", target, "--context", "40", "--max-new-tokens", "60")
    said = run(*options, given=f"{'a' * 60}\nhello\n").stderr
    assert "the model reads at most 40; /clear" in said
    assert "the context of 40 tokens is full" in said


def test_compare_takes_a_context_and_threads(target: str) -> None:
    given = ("compare", "hello", "--methods", "lookup", "--model", target, "--json")
    made = json.loads(run(*given, "--context", "20", "--threads", "1").stdout)
    assert made["results"]["plain"]["tokens"] < 20


@pytest.mark.parametrize("command", [("generate", "hello"), ("chat",)])
def test_threads_are_set_for_the_command_alone(
    target: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    told = os.environ.get(threads.VARIABLE)
    monkeypatch.setattr("draftwood.cli.options.load", lambda *names, **how: seen_by(seen))
    run(*command, "--model", target, "--threads", "3")
    assert seen == [3]
    assert os.environ.get(threads.VARIABLE) == told
    assert "not in the range" in refused(*command, "--threads", "0")


def seen_by(seen: list[int]) -> None:
    seen.append(threads.allowed())
    raise ValueError("enough was seen")


def test_a_chat_reads_files_and_a_system_message(here: Path, target: str) -> None:
    options = ("chat", "--model", target, "--max-new-tokens", "8")
    told = run(*options, given="/system @fox.txt\nhi\n")
    assert told.stdout == run(*options, "--system", "hello", given="hi\n").stdout
    assert told.stdout != run(*options, given="hi\n").stdout
    assert "system: hello" in told.stderr
    given = "/system hello\n/system -\n/system\n@fox.txt\n"
    back = run(*options, given=given)
    assert "system: none of its own" in back.stderr
    assert back.stdout == run(*options, given="hello\n").stdout
    lost = run(*options, given="@nowhere.txt\n/system @nowhere.txt\nhello\n")
    assert lost.stderr.count("there is no file nowhere.txt") == 2
    assert lost.stdout == back.stdout
