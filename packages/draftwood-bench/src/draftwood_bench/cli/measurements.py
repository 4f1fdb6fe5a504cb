"""Commands of `draftwood bench` that ask no prompts: overhead, cost and quality."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood_bench.cli.options import COUNT, output_option, threads_option, words
from draftwood_bench.cli.show import tell, told_progress, typed

if TYPE_CHECKING:
    from draftwood_bench.plan.measurements import Measurement


def measurement_options(command: options.Command) -> options.Command:
    """Add the options that every measurement takes."""
    for option in (options.as_json, threads_option, output_option):
        command = option(command)
    return command


def _known(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of models, refused before anything is imported for them."""
    for model in value:
        options.check_weights(model)
    return value


models_option = click.option(
    "--model",
    "models",
    multiple=True,
    default=(options.DEFAULT_MODEL,),
    show_default=True,
    callback=_known,
    help="A built-in name, a folder, a GGUF file or a Hugging Face id; repeatable.",
)


def models_options(command: options.Command) -> options.Command:
    """Add the options that choose weights, of which several share one table, and a device."""
    device = "For instance cuda.  [default: the first GPU, else the CPU]"
    return models_option(click.option("--device", help=device)(command))


@click.command(short_help="Time per step outside forward passes.")
@click.option(
    "--parts",
    default="prepared,native",
    show_default=True,
    callback=words,
    metavar="A,B",
    help=(
        "native: whole steps of the library, with random weights; prepared: steps that Python"
        " conducts, with a model that answers at once."
    ),
)
@click.option(
    "--vocab",
    type=click.IntRange(min=1024),
    default=49152,
    show_default=True,
    help="Tokens of the model.",
)
@click.option("--steps", type=COUNT, default=120, show_default=True, help="Steps of each method.")
@click.option(
    "--wide",
    type=click.IntRange(min=0),
    default=151936,
    show_default=True,
    help="Tokens of a second model; trees of eight nodes run on both. 0 leaves them out.",
)
@measurement_options
@click.pass_context
def overhead(
    context: click.Context,
    parts: tuple[str, ...],
    vocab: int,
    steps: int,
    wide: int,
    **given: Any,
) -> None:
    """Time per step outside forward passes: drafting, probabilities, verdict, cache and learning.

    Passes of the target, of draft models and of heads are left out.

    \b
    Example:
      draftwood bench overhead --output runs/overhead
    """
    from draftwood_bench.plan.measurements import Overhead

    _measure(context, lambda: Overhead(vocab, steps, wide, parts), given)


@click.command(short_help="What a forward pass costs by nodes and by context.")
@click.option(
    "--paths",
    default="transformers,bfloat16,int8",
    show_default=True,
    callback=words,
    metavar="A,B,C",
    help=(
        "Types of weights as --dtype takes them, also with a cache, as int8+int8-cache;"
        " transformers is Transformers in bfloat16."
    ),
)
@click.option(
    "--nodes",
    default="1,2,4,8,16,32,64",
    show_default=True,
    callback=options.numbers(int, "1,2,4,8"),
    help="Nodes of a tree, its root among them.",
)
@click.option(
    "--contexts",
    default="128",
    show_default=True,
    callback=options.numbers(int, "128,1024"),
    help="Tokens before the tree.",
)
@click.option(
    "--rounds", type=COUNT, default=11, show_default=True, help="Of which the median counts."
)
@models_options
@measurement_options
@click.pass_context
def cost(
    context: click.Context,
    paths: tuple[str, ...],
    nodes: tuple[int, ...],
    contexts: tuple[int, ...],
    rounds: int,
    **given: Any,
) -> None:
    """Milliseconds of a forward pass by nodes, and as the context grows.

    Paths take turns, beside Transformers.

    \b
    Examples:
      draftwood bench cost --output runs/cost
      draftwood bench cost --nodes 1,8 --contexts 128,1024,4096 --output runs/growth
    """
    from draftwood_bench.plan.measurements import VerifyCost

    _measure(context, lambda: VerifyCost(paths, nodes, contexts, rounds), given)


@click.command(short_help="Perplexity and divergence of stored formats beside float32.")
@click.option(
    "--formats",
    default="bfloat16,int8",
    show_default=True,
    callback=words,
    metavar="A,B,C",
    help="Types of weights as --dtype takes them, also with a cache, as int8+int8-cache.",
)
@click.option(
    "--text",
    default="wikitext2",
    show_default=True,
    help="The test part of WikiText-2 among the data sets, or a file of text.",
)
@click.option(
    "--window",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Tokens read at a time.",
)
@click.option(
    "--windows", type=COUNT, default=64, show_default=True, help="How many, over the whole text."
)
@models_options
@measurement_options
@click.pass_context
def quality(
    context: click.Context,
    formats: tuple[str, ...],
    text: str,
    window: int,
    windows: int,
    **given: Any,
) -> None:
    """Perplexity on a text, and divergence from float32 on the same file of weights.

    More formats may be added to a folder later.

    \b
    Examples:
      draftwood bench quality --formats bfloat16,int8 --output runs/quality
      draftwood bench quality --model a.gguf --model b.gguf --formats int8 --output runs/files
    """
    from draftwood_bench.plan.measurements import FormatQuality

    _measure(context, lambda: FormatQuality(formats, text, window, windows), given)


@click.command(short_help="Systems beside each other on the same GGUF file.")
@click.option(
    "--systems",
    default="draftwood,llama.cpp,llama.cpp-lookup,openvino",
    show_default=True,
    callback=words,
    metavar="A,B,C",
    help="What is missing of them is fetched and compiled.",
)
@click.option("--prompts", default="built-in", show_default=True, help="As of the protocols.")
@click.option("--per-category", type=COUNT, default=1, show_default=True, help="Prompts of each.")
@click.option("--max-new-tokens", type=COUNT, default=64, show_default=True)
@click.option(
    "--prompt-tokens",
    type=COUNT,
    default=512,
    show_default=True,
    help="Of the prompt that reading is timed on.",
)
@click.option(
    "--rounds", type=COUNT, default=3, show_default=True, help="Of which the median counts."
)
@models_option
@measurement_options
@click.pass_context
def gguf(
    context: click.Context,
    systems: tuple[str, ...],
    prompts: str,
    per_category: int,
    max_new_tokens: int,
    prompt_tokens: int,
    rounds: int,
    **given: Any,
) -> None:
    """Systems on the same GGUF file: speed, time to the first token of a new process, memory.

    Each decodes plainly and with its own speculation that needs no second model; a head that comes
    with draftwood drafts too.

    \b
    Example:
      draftwood bench gguf --model smollm2-135m --model a.gguf --output runs/gguf
    """
    from draftwood_bench.plan.measurements import SameFile

    _measure(
        context,
        lambda: SameFile(systems, prompts, per_category, max_new_tokens, prompt_tokens, rounds),
        given,
    )


def _measure(
    context: click.Context, make: Callable[[], "Measurement"], given: dict[str, Any]
) -> None:
    from draftwood_bench.plan.order import MeasurementOrder
    from draftwood_bench.run.measurements import run_measurement

    folder: Path = given["output"]
    order = MeasurementOrder(
        make(),
        tuple(dict.fromkeys(given.get("models", ()))),
        folder,
        given.get("device"),
        given["threads"],
        typed(),
    )
    with told_progress() as progress:
        run_measurement(order, progress)
    tell(context, folder, given["as_json"])
