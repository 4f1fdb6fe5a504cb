"""`draftwood train filter`: a network for the rule ``learned``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import output, progress

if TYPE_CHECKING:
    from draftwood_diffusion.filters.fit import Fitted


@click.command(name="filter", short_help="Learn which predictions of masks stay.")
@click.argument("model")
@click.argument("file", metavar="OUTPUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--prompts",
    type=options.TextFile(),
    required=True,
    metavar="FILE",
    help="Text file with a prompt on each line.",
)
@click.option("--limit", type=click.IntRange(1), help="Most prompts.")
@click.option("--raw", is_flag=True, help="Go on with prompts as they stand.")
@click.option("--hidden", type=click.IntRange(1), default=128, show_default=True, help="Units.")
@click.option("--epochs", type=click.IntRange(1), default=2000, show_default=True)
@options.threads
@options.text_option("max_new_tokens", 64)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@options.as_json
def train_filter(
    model: str,
    file: Path,
    prompts: str,
    limit: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write texts with MODEL one by one, learn which of its early predictions they hold, and write
    the network to OUTPUT, a .npz file for --method learned,file=OUTPUT. In the model's folder, as
    filter.npz, --method learned finds it by itself.

    \b
    Example:
      draftwood train filter stories-diffusion filter.npz --prompts beginnings.txt
    """
    lines = [each for each in prompts.split("\n") if each.strip()][:limit]
    fitted, count = _fitted(model, lines, given)
    fitted.network.save(file)
    told = {"examples": count, "loss": fitted.loss, "right": fitted.right, "found": fitted.found}
    if as_json:
        click.echo(json.dumps(told))
        return
    output().print(
        f"{count} passes; held out: {fitted.loss:.3f} nats a place, {fitted.right:.1%} of the sure"
        f" ones stay, {fitted.found:.1%} of those that stay are sure"
    )


def _fitted(model: str, prompts: Sequence[str], given: dict[str, Any]) -> "tuple[Fitted, int]":
    """Write texts behind prompts and fit a filter; the filter, and of how many passes."""
    from draftwood.engine import Options
    from draftwood.model_names import ModelNames
    from draftwood_diffusion.filters.examples import collect
    from draftwood_diffusion.filters.fit import fit
    from draftwood_diffusion.opening import masked_model

    lm = options.load(ModelNames(model=model), "plain", measure=False)
    masked = masked_model(lm, {})
    length, seed, epochs = given["max_new_tokens"], given["seed"], given["epochs"]
    asked = Options(max_new_tokens=length, stop_tokens=lm.end_tokens, seed=seed)
    encoded = [lm.encode(each, given["raw"]) for each in prompts]
    with progress() as bar:
        task = bar.add_task("texts", total=len(encoded))
        examples = collect(masked, encoded, asked, lambda done: bar.update(task, completed=done))
        task = bar.add_task("epochs", total=epochs)
        fitted = fit(
            *(examples, given["hidden"], epochs, seed),
            told=lambda done: bar.update(task, completed=done),
        )
    return fitted, len(examples)
