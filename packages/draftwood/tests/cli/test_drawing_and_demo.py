import io
from dataclasses import replace

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from command import refused, run
from draftwood.cli.tree_view import best_step, draw_step, visible
from draftwood.stats import Step
from draftwood.tree import DraftTree


@pytest.fixture
def tokenizer(target):
    return AutoTokenizer.from_pretrained(target)


def drawn(step: Step, tokenizer, limit: int = 24, **options: object) -> str:
    console = Console(file=io.StringIO(), width=80, **options)
    console.print(draw_step(step, tokenizer, limit))
    return console.file.getvalue()


def step_of(text: str, parents: list[int], path: tuple[int, ...], own: str, tokenizer) -> Step:
    tokens = tokenizer(text)["input_ids"]
    emitted = [*(tokens[node] for node in path), *tokenizer(own)["input_ids"]]
    return Step(emitted, len(tokens) - 1, len(path), tree=DraftTree.of(tokens, parents), path=path)


def test_the_accepted_path_and_the_model_s_own_token_are_marked(tokenizer):
    lines = drawn(step_of("rabc", [-1, 0, 0, 1], (1, 3), "z", tokenizer), tokenizer).splitlines()
    assert lines[0].startswith("r  newest token")
    assert [line.strip("│├└─┃┗━┣ ") for line in lines[1:]] == [
        "a  ✓",
        "c  ✓",
        "z  the model's own",
        "b",
    ]


def test_colour_only_where_there_is_some(tokenizer):
    step = step_of("rab", [-1, 0, 1], (1,), "z", tokenizer)
    assert "\x1b[" not in drawn(step, tokenizer)
    assert "\x1b[1;32m" in drawn(
        step, tokenizer, force_terminal=True, color_system="standard", no_color=False
    )


def test_sources_are_named(tokenizer):
    step = step_of("rab", [-1, 0, 0], (1,), "z", tokenizer)
    tree = DraftTree.of(
        step.tree.token_list, step.tree.parent_list, sources=((), ("suffix", "n-grams"), ("prior",))
    )
    lines = drawn(replace(step, tree=tree), tokenizer).splitlines()
    assert [line.strip("│├└─┃┗━┣ ") for line in lines[1:]] == [
        "a  ✓  suffix + n-grams",
        "z  the model's own",
        "b  prior",
    ]


def test_wide_trees_are_cut(tokenizer):
    step = step_of(
        "r" + "abcdefghijklmnopqrst" + "uvw",
        [-1] + [0] * 20 + [3, 20, 20],
        (20, 22),
        "z",
        tokenizer,
    )
    lines = [line.strip("│├└─┃┗━┣ ") for line in drawn(step, tokenizer, limit=12).splitlines()]
    assert "c  … 1 more" in lines
    assert "t  ✓" in lines
    assert "… 16 more" in lines
    assert len(lines) < 12


def test_text_that_ended_within_the_accepted_guesses(tokenizer):
    tokens = tokenizer("rab")["input_ids"]
    step = Step(tokens[1:], 2, 2, tree=DraftTree.chain(tokens), path=(1, 2))
    assert "own" not in drawn(step, tokenizer)


def test_tokens_are_visible(tokenizer):
    spaces = tokenizer(" \n")["input_ids"]
    assert [visible(token, tokenizer) for token in spaces] == ["·", "↵"]


def test_best_step():
    tree = DraftTree.chain([1, 2, 3])
    steps = [
        Step([1]),
        Step([1], 2, 0, tree=tree),
        Step([1, 2], 2, 1, tree=tree),
        Step([1, 2], 2, 1, tree=tree),
    ]
    assert best_step(steps) is steps[2]
    assert best_step(steps[:1]) is None


def test_demo_reads_the_prompt_of_a_file(target, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text("abcabc\n")
    monkeypatch.chdir(tmp_path)
    options = ("--model", target, "--max-new-tokens", "8", "--prompt")
    for typed, given in (("@prompt.txt", None), ("-", "abcabc\n")):
        result = run("demo", *options, typed, given=given)
        assert result.exit_code == 0, result.output
        assert "\nabcabc\n" in result.stdout
    assert "there is no file nowhere.txt" in refused("demo", *options, "@nowhere.txt")


@pytest.mark.parametrize("columns", ["80", "40"])
def test_demo(target, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    result = run(
        "demo",
        "--model",
        target,
        "--dtype",
        "float32",
        "--max-new-tokens",
        "24",
        "--prompt",
        "abcabc",
    )
    assert result.exit_code == 0, result.output
    assert "✓ the same 24 tokens" in result.stdout
    assert "newest token" in result.stdout
    assert "\x1b[" not in result.stdout
    if columns == "80":
        assert all(len(line) <= 80 for line in result.stdout.splitlines()[2:])


def test_demo_with_a_draft_model(target, draft):
    result = run(
        "demo",
        "--model",
        target,
        "--draft-model",
        draft,
        "--dtype",
        "float32",
        "--max-new-tokens",
        "12",
    )
    assert "the speed (rsd-s)" in result.stdout


@pytest.mark.model
def test_demo_of_the_built_in_model():
    result = run("demo", "--max-new-tokens", "16")
    assert result.exit_code == 0
    assert "✓ the same" in result.stdout
