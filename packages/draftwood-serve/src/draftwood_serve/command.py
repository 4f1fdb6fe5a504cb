"""`draftwood serve`: a model behind OpenAI's API."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes
from draftwood.optional import install_command

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood_serve.replicas import ReplicaSet
    from draftwood_serve.service import TextService
    from draftwood_serve.settings import ServeSettings


LEVELS = ("error", "warning", "info", "debug")
"""Levels of the log."""
BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def size_of(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes, with k, m or g for a power of 1024."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)i?b?", value.strip().lower())
    if found is None:
        raise click.BadParameter(f"needs bytes such as 512m or 2g, got {value!r}")
    return round(float(found[1]) * BYTES[found[2]])


def _of_several(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its models one by one: ``others`` holds settings of those behind the first."""

    @wraps(command)
    def run(model: str, models: tuple[str, ...], **given: Any) -> None:
        with _needing("draftwood-serve"):
            from draftwood_serve.settings import of_each
        first, *others = of_each(given, _asked(model, models))
        command(**{**given, **first}, others=others)

    return run


@click.command()
@click.argument("model", default=options.DEFAULT_MODEL, shell_complete=options.completers.models)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    shell_complete=options.completers.models,
    help="A model that requests may ask for, loaded when one first does. Repeatable.",
)
@click.option(
    "--max-models",
    type=click.IntRange(min=1),
    help="Models in memory at the same time.  [default: as many as fit]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Other hosts need --api-key.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free one.",
)
@options.method_of_models
@options.tree_of_models
@click.option(
    "--speculative-config",
    metavar="JSON",
    help=('--method and --draft-model as one, for instance {"method": "rsd-s", "model": "..."}.'),
)
@_of_several
@options.drafting_options
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Texts that are written at the same time.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Requests that wait; further ones get 429.",
)
@click.option(
    "--max-step-ms",
    type=options.NumberRange(min=0, min_open=True),
    default=40.0,
    show_default=True,
    help="What prompts may make a step of the others last.",
)
@click.option(
    "--cache-memory",
    callback=size_of,
    help="Bytes of keys and values, such as 2g or 512m; those of a draft model come on top."
    "  [default: a quarter of the free memory]",
)
@options.text_option("context")
@click.option(
    "--request-timeout",
    type=options.NumberRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that a request may take in all.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="DRAFTWOOD_API_KEY",
    help="Each request must bring one of these. Repeatable; also from DRAFTWOOD_API_KEY.",
)
@click.option(
    "--served-model-name",
    "served_names",
    multiple=True,
    help="A name that requests ask for. Repeatable.  [default: MODEL]",
)
@click.option(
    "--learn", is_flag=True, help="Let the head learn from its rejected drafts while nothing waits."
)
@click.option(
    "--learn-to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep what it learns from, and the head.  [default: in memory]",
)
@click.option("--learn-key", metavar="KEY", help="Whose texts it learns from; of several API keys.")
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@options.tp
@click.option("--threads", type=options.THREADS, help="CPU threads.  [default: one for each core]")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    help="Serve with so many processes, by Ray; each gets its share of the CPU, or a GPU.",
)
@click.option("--ray-address", metavar="HOST:PORT", help="Start the replicas on this Ray cluster.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="info writes a line for each request, debug also where its time went.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print where it listens as a JSON object; log lines are objects too.",
)
def serve(
    names: "ModelNames",
    others: list[dict[str, Any]],
    log_level: str,
    speculative_config: str | None,
    replicas: int | None,
    ray_address: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Serve MODEL, the first one, and each --model to OpenAI's clients: chat completions,
    completions and responses.

    What drafts, and other names, are of the first model, --method and --tree of all, unless
    NAME=VALUE says of which.

    Requests share each pass of the model, and every text is the one it would be alone. Ctrl-C
    stops: requests under way may end, once more ends them at once.

    \b
    Examples:
      draftwood serve
      draftwood serve smollm2-135m --port 8080 --method suffix
      draftwood serve --method rsd-s --draft-model smollm2-135m-eagle --tree 4x3
      draftwood serve smollm2-135m --replicas 4
      draftwood serve --model smollm2-135m --model qwen2.5-coder-0.5b --max-models 1
      draftwood serve smollm2-135m --model stories-15m --method stories-15m=suffix
    """
    with _needing("draftwood-serve"):
        from draftwood_serve.settings import ServeSettings
        from draftwood_serve.settings import speculative_config as config_of
    if speculative_config is not None:
        if any(each["method"] is not None for each in (given, *others)) or names.draft_model:
            raise ValueError(
                "--speculative-config says what --method and --draft-model say; give one or the"
                " other"
            )
        given |= config_of(speculative_config)
        others = [{**other, "method": given["method"]} for other in others]
    settings = ServeSettings(**{**asdict(names), **given})
    every = [settings, *(replace(settings, **other) for other in others)]
    _check_processes(every, replicas, ray_address)
    for each in every:
        _check(each, len(every) > 1)
    with _needing("draftwood-serve"):
        from draftwood_serve.access_log import ServerLog
        from draftwood_serve.run import serve as run
    options.in_processes(settings)
    log = ServerLog(log_level, as_json, notes().color_system is not None, _line)
    from draftwood_serve.greeting import welcome

    tell = _tell if as_json else partial(welcome, settings)
    served = [name for each in every for name in each.names]

    def ready(service: "TextService", address: str) -> None:
        target = service.models.first.target
        length = target.context_length
        facts = _facts(settings, served, target.method, address, length, target.instructions)
        tell(facts | {"chats": target.plain.tokenizer.chat_template is not None})
        if target.idle_reason is not None:
            log.note(f"the head does not learn: {target.idle_reason}", "error")
        if target.learning is not None:
            target.learning.say = log.note

    def replicas_ready(started: "ReplicaSet", address: str) -> None:
        first = started.facts
        more = {"replicas": replicas, "threads": started.needs["CPU"]}
        about = first.method, address, first.context_length, first.instructions
        tell(_facts(settings, served, *about) | more)

    if replicas is not None:
        with _needing("draftwood-serve[ray]"):
            from draftwood_serve.replicas import serve_replicas
        serve_replicas(settings, replicas, ray_address, replicas_ready, log)
    else:
        run(every, ready, log)


def _asked(model: str, models: tuple[str, ...]) -> list[str]:
    """Names of the models to serve, the positional one first.

    What is typed wins over the configuration, of which both may come.
    """
    typed = options.typed("model", "models")
    positional = [model] if "model" in typed or not models else []
    several = () if typed == ["model"] else models
    return list(dict.fromkeys([*positional, *several]))


def _line(text: str) -> None:
    click.echo(text, err=True, color=True)  # whether there is colour was decided before


def _check_processes(
    every: "list[ServeSettings]", replicas: int | None, ray_address: str | None
) -> None:
    """Refuse options of several processes that do not go together."""
    settings = every[0]
    if len(every) > 1 and (replicas is not None or settings.tp > 1 or settings.learn):
        raise ValueError(
            "--replicas, --tp and --learn are for a server of one model; leave out the others, or"
            " start a server for each"
        )
    if replicas is not None and settings.learn:
        raise ValueError("--learn is for one process; leave out --replicas")
    if replicas is not None and settings.tp > 1:
        raise ValueError("--replicas and --tp do not go together; leave one of them out")
    if ray_address is not None and replicas is None:
        raise ValueError("--ray-address is where replicas start; say how many with --replicas N")


def _check(settings: "ServeSettings", is_one_of_several: bool = False) -> None:
    """Refuse settings that cannot be served, before slow imports; say what is left aside."""
    from draftwood import methods
    from draftwood_serve.other_texts import served_method

    try:
        if served_method(settings.first_method, settings) is not None:
            return settings.require()
        method = methods.spec(settings.first_method)
        taken = methods.taken(method, settings.given)
        options.check_methods([method.name], taken, settings.inexact)
        methods.require_tree([method.name], settings.tree, settings.drafts.levels)
    except ValueError as error:
        if not is_one_of_several:
            raise
        cure = "--method and --tree take NAME=VALUE for one model"
        raise ValueError(f"{settings.model}: {error}; {cure}") from None
    if idle := options.left_aside(method, settings.given, settings.drafts):
        given = ", ".join(idle)
        said = f"{method.name} does without {given}; a request may name a method that uses it"
        notes().print(said, style="dim", soft_wrap=True)
    settings.require()


@contextmanager
def _needing(package: str) -> Iterator[None]:
    """Imports of what a package of draftwood brings; raises ImportError, with the command that
    installs it, where something is missing.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("draftwood"):
            raise
        raise ImportError(
            f"draftwood serve needs the package {missing.name}: {install_command(package)}"
        ) from None


def _facts(
    settings: "ServeSettings",
    served: list[str],
    method: str,
    address: str,
    length: int | None,
    instructions: str | None,
) -> dict[str, object]:
    return {
        "address": address,
        "api": f"{address}/v1",
        "page": f"{address}/",
        "models": served,
        "method": method,
        "context_length": length,
        "max_batch": settings.max_batch,
        "instructions": instructions,
    }


def _tell(facts: dict[str, object]) -> None:
    click.echo(json.dumps(facts))
