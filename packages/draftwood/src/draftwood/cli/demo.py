"""`draftwood demo`: the same text, written twice."""

from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.generate import whole_prompt
from draftwood.cli.race import print_sameness, print_speeds
from draftwood.cli.terminal import output, progress
from draftwood.cli.tree_view import best_step, draw_step

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.stats import Step
    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Generation

PROMPT = "List the days of the week, and say for each what comes next."
RUNS = 2  # of each, in turn; the faster counts, as other programs only ever slow one down


@click.command()
@options.model_options
@click.option(
    "--prompt",
    default=PROMPT,
    help="Another prompt than the built-in one; @FILE puts a file's text in, - reads it from"
    " standard input.",
)
@options.text_option("max_new_tokens", 64)
def demo(
    names: "ModelNames",
    prompt: str,
    max_new_tokens: int,
) -> None:
    """Write one text plainly and with draft trees: the same text, both speeds, and one of the
    trees.

    With --draft-model the trees are drawn from that model, by rsd-s, or from that trained head;
    without it they are made by the default method, from the text so far and from what the model
    itself thought likely before.

    \b
    Example:
      draftwood demo
    """
    prompt = whole_prompt(prompt)
    method = "rsd-s" if names.drafts.model else names.drafts.method
    options.check_methods([method], names.given, drafts=names.drafts)
    plain = options.load(names)
    drafted = plain.with_method(method if names.drafts.model else None)
    written, redone, steps = _run(plain, drafted, prompt, max_new_tokens)
    console = output()
    console.print(f"[bold]draftwood[/]  {names.model}, {_hardware(plain)}\n", soft_wrap=True)
    console.print(prompt, style="cyan", markup=False)
    console.print(written.text.strip(), markup=False)
    console.print()
    print_speeds(console, written, redone)
    print_sameness(console, plain, plain.encode(prompt), written, redone)
    step = best_step(steps)
    if step is not None:
        console.print(
            f"\n[bold]One of the {redone.stats.target_runs} draft trees[/]: {step.drafted} draft"
            f" tokens, [bold green]{step.accepted} accepted[/], {len(step.tokens)} tokens in one"
            " forward pass"
        )
        console.print(draw_step(step, plain.tokenizer))


def _run(
    plain: "LanguageModel", drafted: "LanguageModel", prompt: str, max_new_tokens: int
) -> tuple["Generation", "Generation", list["Step"]]:
    """Write the text plainly and with drafts; return the fastest run of each, and the steps."""
    best: dict[LanguageModel, tuple[Generation, list[Step]]] = {}
    with progress() as bar:
        task = bar.add_task("warming up", total=2 * RUNS + 2)
        for lm in (plain, drafted):
            lm.generate(prompt, max_new_tokens=8)
            bar.advance(task)
        for lm in (plain, drafted) * RUNS:
            bar.update(task, description=f"writing, {lm.method.name}")
            stream = lm.stream(prompt, max_new_tokens=max_new_tokens)
            for _ in stream:
                pass
            made = stream.result
            if lm not in best or made.stats.tokens_per_second > best[lm][0].stats.tokens_per_second:
                best[lm] = made, stream.steps
            bar.advance(task)
    return best[plain][0], *best[drafted]


def _hardware(lm: "LanguageModel") -> str:
    """Hardware that the speeds were measured on."""
    from draftwood.native.threads import allowed
    from draftwood.storage.machine import device_name

    name, threads = device_name(lm.model.device), allowed()
    return (
        name
        if lm.model.device.type == "cuda"
        else f"{name}, {threads} thread{'s' if threads > 1 else ''}"
    )
