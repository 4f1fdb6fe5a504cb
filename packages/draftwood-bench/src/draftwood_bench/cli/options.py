"""Options of the commands of `draftwood bench`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from draftwood.cli import options

COUNT, COUNT_OR_NONE = click.IntRange(min=1), click.IntRange(min=0)
PROOF = ("law_prompts", "law_samples", "bound_prompts", "bound_tokens")
SETTINGS = (
    *(
        "max_new_tokens",
        "rounds",
        "seed",
        "ignore_eos",
        "prompts",
        "per_category",
        "limit",
        "max_prompt_tokens",
    ),
    *PROOF,
)


def words(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))


def run_options(temperature: str, tokens: int) -> Callable[[options.Command], options.Command]:
    """Options that every protocol takes, with their own defaults for temperature and tokens."""

    def add(command: options.Command) -> options.Command:
        decoding = (
            options.text_option("ignore_eos"),
            options.text_option("seed", 0, "The first of the requests' seeds."),
            click.option(
                "--rounds",
                type=COUNT,
                default=1,
                show_default=True,
                help="How often all is measured.",
            ),
            click.option(
                "--temperature",
                "temperatures",
                default=temperature,
                show_default=True,
                callback=options.numbers(float, "0,0.7"),
                help="One or more, with commas between.",
            ),
            options.text_option("max_new_tokens", tokens),
        )
        for option in (*_workers(), *_proof(), *decoding, *_prompts(), *_models()):
            command = option(command)
        return command

    return add


def _workers() -> tuple[Callable[..., Any], ...]:
    shared = "Processes that share the work; on CUDA each takes a GPU of its own."
    return (
        options.as_json,
        click.option(
            "--inexact", is_flag=True, help="Allow methods that change what the model says."
        ),
        click.option(
            "--ray-address", help="HOST:PORT of a Ray cluster.  [default: workers on this machine]"
        ),
        click.option("--workers", type=COUNT, default=1, show_default=True, help=shared),
    )


def _proof() -> tuple[Callable[..., Any], ...]:
    bounds = "Compute the greatest possible acceptance on so many prompts"
    law = (
        "Above T = 0, test the next token's distribution, of methods that do not match, on so many"
        " prompts"
    )
    twice = click.IntRange(min=2)
    return (
        click.option(
            "--bound-tokens",
            type=COUNT,
            default=40,
            show_default=True,
            help="... over so many tokens.",
        ),
        click.option(
            "--bound-prompts", type=COUNT_OR_NONE, default=2, show_default=True, help=bounds
        ),
        click.option(
            "--law-samples", type=twice, default=1000, show_default=True, help="... drawn so often."
        ),
        click.option("--law-prompts", type=COUNT_OR_NONE, default=2, show_default=True, help=law),
    )


def _prompts() -> tuple[Callable[..., Any], ...]:
    files = (
        "JSONL with prompt, messages or turns; or built-in, human-eval, spec-bench, gsm8k, svamp,"
        " xsum, de-en, en-de, mbpp, mbpp-run, ifeval, lambada, stories; several with commas"
        " between."
    )
    return (
        click.option(
            "--max-prompt-tokens",
            type=COUNT,
            help="Leave longer prompts out.  [default: what fits]",
        ),
        click.option("--limit", type=COUNT, help="Most prompts in all."),
        click.option(
            "--category", "categories", multiple=True, help="Only this category; repeatable."
        ),
        click.option("--per-category", type=COUNT, help="Most prompts of each category."),
        click.option("--prompts", default="built-in", show_default=True, help=files),
    )


threads_option = click.option(
    "--threads", type=options.THREADS, help="CPU threads.  [default: PyTorch's own choice]"
)
output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the records; a run that was stopped goes on there.",
)


def _models() -> tuple[Callable[..., Any], ...]:
    return (threads_option, options.model_options, output_option)


def methods_option(default: str, help: str) -> Callable[[options.Command], options.Command]:
    return click.option(
        "--methods", default=default, show_default=True, callback=words, metavar="A,B,C", help=help
    )


tree_option = options.tree
peers_option = click.option(
    "--peers",
    default="",
    callback=words,
    metavar="A,B",
    help=(
        "Other systems beside: transformers, llama.cpp, llama.cpp-lookup, openvino, openvino-int8,"
        " vllm."
    ),
)
