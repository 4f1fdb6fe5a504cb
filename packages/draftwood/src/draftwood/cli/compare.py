"""`draftwood compare`: several methods on the same prompts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options
from draftwood.cli.generate import read_prompt
from draftwood.cli.terminal import depths, mark, output, progress, ruled_table
from draftwood.cli.text_files import read_text, with_files
from draftwood.cli.tree_view import visible
from draftwood.methods import trees_of
from draftwood.sampling_params import sampling_params
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.stats import Stats
    from draftwood.testing.promises import Divergence
    from draftwood.text.language_model import LanguageModel

WARM_UP_TOKENS = 8


@dataclass
class Result:
    """Result of one method on all prompts.

    Attributes:
        stats: summed over the prompts.
        identical_to_plain: whether every text is; None at a temperature above 0, where texts are
            drawn.
        divergences: (prompt's number, place) of each text that differs.
    """

    stats: "Stats"
    identical_to_plain: bool | None
    divergences: list[tuple[int, "Divergence"]] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        found = [{"prompt": number, **asdict(place)} for number, place in self.divergences]
        numbers = {**self.stats.as_json(), "identical_to_plain": self.identical_to_plain}
        return {**numbers, "divergences": found} if found else numbers


@click.command()
@click.argument("prompts", nargs=-1, metavar="PROMPT...")
@click.option(
    "--methods",
    required=True,
    callback=options.method_names,
    metavar="A,B,C",
    shell_complete=completers.methods,
    help="Plain is always run too.",
)
@click.option(
    "--prompts-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="One prompt per line; with the ending .jsonl one object per line, with prompt or turns.",
)
@options.model_options
@options.threads
@options.tree
@options.overlap
@options.text_option("max_new_tokens", 64)
@options.text_option("context")
@options.text_option("temperature")
@options.text_option("seed", 0)
@options.text_option("raw")
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@options.as_json
@click.pass_context
def compare(
    command: click.Context,
    prompts: tuple[str, ...],
    methods: list[str],
    prompts_file: Path | None,
    names: "ModelNames",
    tree: str | None,
    overlap: bool,
    inexact: bool,
    as_json: bool,
    **decoding: object,
) -> None:
    """Decode every PROMPT by plain decoding and by other methods, in turn, and compare speed and
    text.

    The exit code is 1 if a greedy text differs from the plain one. --tree is for those of the
    methods that can draw it.

    \b
    Examples:
      draftwood compare "Count to thirty." "Name the planets." --methods auto,suffix
      draftwood compare --prompts-file prompts.txt --methods rsd-s --draft-model SMALLER --json
    """
    wanted = _prompts(prompts, prompts_file)
    options.check_methods(methods, names.given, inexact, overlap, names.drafts, tree)
    decoding["exact"] = not inexact
    sampling_params(None, decoding)  # refused before anything is loaded
    plain = options.load(names, overlap=overlap)
    own = trees_of(methods, tree)
    others = {name: plain.with_method(name, tree=own[name]) for name in methods}
    models = {"plain": plain} | others
    results = run(models, wanted, decoding)
    if as_json:
        report = {
            "prompts": wanted,
            "results": {name: result.as_json() for name, result in results.items()},
        }
        click.echo(json.dumps(report))
    else:
        _print_table(results)
        _print_divergences(results, plain.tokenizer)
    if any(result.identical_to_plain is False for result in results.values()):
        command.exit(1)


def run(
    models: dict[str, "LanguageModel"], prompts: Sequence[str], decoding: dict[str, Any]
) -> dict[str, Result]:
    """Run every prompt by every model in turn, so that a slower machine slows all of them.

    Args:
        models: by method, the same target; one of them is ``plain``.
        prompts: texts.
        decoding: options of ``LanguageModel.generate``.
    """
    from draftwood.stats import Stats
    from draftwood.testing.promises import first_divergence

    plain, greedy, raw = models["plain"], decoding["temperature"] == 0.0, bool(decoding["raw"])
    encoded = [plain.encode(prompt, raw) for prompt in prompts]
    results = {name: Result(Stats(), True if greedy else None) for name in models}
    order = ["plain", *(name for name in models if name != "plain")]
    with progress() as bar:
        task = bar.add_task("warming up", total=len(order) * (len(prompts) + 1))
        for name in order:
            models[name].generate(encoded[0], **{**decoding, "max_new_tokens": WARM_UP_TOKENS})
            bar.advance(task)
        for number, prompt in enumerate(encoded):
            texts: dict[str, list[int]] = {}
            for name in order:
                bar.update(task, description=f"prompt {number + 1}, {name}")
                made = models[name].generate(prompt, **decoding)
                texts[name] = made.token_ids
                results[name].stats += made.stats
                found = (
                    first_divergence(plain.model, prompt, texts["plain"], made.token_ids)
                    if greedy
                    else None
                )
                if found is not None:
                    results[name].identical_to_plain = False
                    results[name].divergences.append((number, found))
                bar.advance(task)
    return results


def _prompts(given: Sequence[str], file: Path | None) -> list[str]:
    if given.count("-") > 1:
        raise ValueError("standard input is one prompt; give - once")
    read = [read_prompt() if each == "-" else with_files(each) for each in given]
    prompts = [*read, *(_from_file(file) if file else [])]
    if file is not None and not prompts:
        raise ValueError(f"{file} holds no prompts; write one on each line")
    if not prompts:
        raise ValueError("there is nothing to compare; give at least one prompt, or --prompts-file")
    if any(not prompt.strip() for prompt in prompts):
        raise ValueError(
            f"prompt {[bool(p.strip()) for p in prompts].index(False) + 1} is empty; give some text"
        )
    return prompts


def _from_file(file: Path) -> list[str]:
    lines = read_text(str(file)).split("\n")
    if file.suffix != ".jsonl":
        return [line for line in lines if line.strip()]
    return [
        _from_json(line, f"{file}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _from_json(line: str, place: str) -> str:
    try:
        record = json.loads(line)
        turns = record["turns"] if "prompt" not in record else [record["prompt"]]
        if isinstance(turns, list) and isinstance(turns[0], str):
            return turns[0]
    except (ValueError, KeyError, TypeError, IndexError):
        pass
    raise ValueError(
        f"{place} is no JSON object with the field prompt, a text, or turns with at least one"
    )


def _print_table(results: dict[str, Result]) -> None:
    numbers = ("tokens/s", "speed-up", "tokens\n/pass", "drafted\n/pass")
    table = ruled_table(("method",), numbers)
    table.add_column("accepted by depth", no_wrap=True)
    table.add_column("same\ntext", justify="center")
    base = results["plain"].stats.tokens_per_second
    for name, result in results.items():
        stats = result.stats
        speed_up = f"{stats.tokens_per_second / base:.2f}x" if base else "-"
        per_run = f"{stats.drafted / stats.target_runs:.1f}" if stats.target_runs else "-"
        is_same = result.identical_to_plain
        same = "drawn" if is_same is None else mark(is_same)
        speed = f"{stats.tokens_per_second:.1f}"
        table.add_row(
            name, speed, speed_up, f"{stats.block_efficiency:.2f}", per_run, depths(stats), same
        )
    output().print(table)


def _print_divergences(results: dict[str, Result], tokenizer: AnyTokenizer) -> None:
    def word(token: int | None) -> str:
        return (
            "the end of the text" if token is None else f"'{visible(token, tokenizer)}' ({token})"
        )

    for name, result in results.items():
        for number, found in result.divergences:
            tie = "a tie within rounding" if found.tie else "no tie within rounding"
            output().print(
                f"{name}, prompt {number + 1}: differs first at token {found.position}:"
                f" {word(found.plain_token)} in plain decoding, {word(found.other_token)} here; the"
                f" model's two top logits are {found.margin:.3g} apart there, {tie}",
                markup=False,
                soft_wrap=True,
            )
