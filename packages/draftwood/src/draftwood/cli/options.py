"""Options that several commands share, and what they turn into."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from draftwood import methods
from draftwood.cli import completers
from draftwood.cli.text_files import read_text, with_files
from draftwood.loading.names import DEFAULT_MODEL as DEFAULT_MODEL
from draftwood.methods import trees
from draftwood.methods.drafts import Drafts
from draftwood.model_names import ModelNames
from draftwood.moved import renamed
from draftwood.rules import parse_rules
from draftwood.sampling_params import OPTIONS, SamplingParams

if TYPE_CHECKING:
    from draftwood.drafters.resources import Need
    from draftwood.methods.needs import Spec
    from draftwood.text.language_model import LanguageModel

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


class NumberRange(click.FloatRange):
    """Numbers between bounds; what is no number lies between none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number", param, ctx) if found != found else found


THREADS = click.IntRange(1, 1024)
"""Numbers of threads; a system refuses to start many more."""


class TextFile(click.ParamType):
    """A file that is read as text."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return read_text(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        return completers.files(ctx, param, incomplete)


class NamedRules(click.ParamType):
    """Rules of sampling with their strengths, as ``parse_rules`` reads them."""

    name = "name=strength,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_rules(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def text_option(name: str, default: Any = None, help: str | None = None) -> Decorator:
    """An option of a text, with the type, range and help that its field declares.

    Args:
        name: of a field of ``SamplingParams``.
        default: where a command has one of its own.
        help: likewise.
    """
    option = OPTIONS[name]
    flag = f"--{name.replace('_', '-')}"
    default = getattr(SamplingParams, name) if default is None else default
    more: dict[str, Any] = {"help": help or option.help}
    if option.kind == "flag":
        return click.option(flag, is_flag=True, **more)
    if option.kind == "stops":
        return click.option(flag, multiple=True, **more)
    if option.kind == "rules":
        return click.option(flag, type=NamedRules(), **more)
    if option.kind in ("schema", "grammar", "text"):
        return click.option(flag, type=TextFile(), metavar="FILE", **more)
    kind: Any = int if option.kind == "whole" else float
    if option.least is not None:
        span = click.IntRange if option.kind == "whole" else click.FloatRange
        kind = span(option.least, option.most, min_open=option.above)  # type: ignore[arg-type]
    return click.option(flag, type=kind, default=default, show_default=default is not None, **more)


def text_options(without: Sequence[str] = (), **defaults: Any) -> Decorator:
    """Every option of a text that the command line takes.

    Args:
        without: names that mean nothing to the command.
        defaults: of the command's own.
    """
    taken = [name for name, option in OPTIONS.items() if "command line" in option.places]
    names = [name for name in taken if name not in without]

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = text_option(name, defaults.get(name))(command)
        return command

    return add


def _use_threads(context: click.Context, parameter: click.Parameter, value: int | None) -> None:
    """Set the threads until the command ends."""
    from draftwood.native.threads import threads_set

    context.with_resource(threads_set(value))


def _with_files(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    return None if value is None else with_files(value)


threads = click.option(
    "--threads",
    type=THREADS,
    metavar="N",
    expose_value=False,
    callback=_use_threads,
    help="CPU threads.  [default: one for each core]",
)
system = click.option(
    "--system",
    metavar="TEXT",
    callback=_with_files,
    help="What the model is told before all else; @FILE puts a file's text in.",
)
colour = click.option(
    "--color/--no-color",
    "colour",
    default=True,
    show_default=True,
    help="Show Markdown and code in colour on a terminal, unless NO_COLOR is set.",
)
tp = click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that hold the model in parts, one to a GPU where there are any.",
)


def _alone_and_of_models(
    flag: str, metavar: str, help: str, default: str = "", **more: Any
) -> tuple[Decorator, Decorator]:
    """An option, and its repeatable form for a command that takes several models."""
    each = {"metavar": f"[NAME=]{metavar}", "multiple": True}
    told = f"{help} NAME={metavar} is for one model. Repeatable.{default}"
    alone = click.option(flag, metavar=metavar, help=help + default, **more)
    return alone, click.option(flag, help=told, **each, **more)  # type: ignore[arg-type]


method, method_of_models = _alone_and_of_models(
    "--method",
    "METHOD",
    "How to decode; see 'draftwood methods'.",
    "  [default: auto, or what --draft-model is for]",
    shell_complete=completers.methods,
)
tree, tree_of_models = _alone_and_of_models("--tree", "SHAPE", trees.HELP)
overlap = click.option(
    "--overlap",
    is_flag=True,
    help="Let the draft model draft while the model runs, where each has a core or device.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)


def model_options(command: Command) -> Command:
    """Add the options of weights and of the way they run, which a command gets as ``names``."""
    return _names_options(command)


def drafting_options(command: Command) -> Command:
    """The same for a command whose argument is the model."""
    return _names_options(command, "model")


def head_options(command: Command) -> Command:
    """The same for a command whose argument is the model, and that measures one EAGLE head."""
    told = "An EAGLE head to measure; none measures none.  [default: the one that comes with MODEL]"
    return _names_options(command, "model", "datastore", draft_model=told)


def weights_options(command: Command) -> Command:
    """The same for a command in which nothing drafts."""
    return _names_options(command, "draft_model", "datastore")


def _names_options(command: Command, *left_out: str, **helps: str) -> Command:
    """An option for each field of ``ModelNames`` that says what it is, or as ``helps`` tells."""

    @wraps(command)
    def run(*given: Any, drafter: str | None = None, **options: Any) -> Any:
        if drafter is not None:
            renamed("--drafter", "--draft-model")
            options["draft_model"] = (*options["draft_model"], drafter)
        own = {each.name: options.pop(each.name) for each in named if each.name in options}
        return command(*given, names=ModelNames(**own), **options)

    named = fields(ModelNames)
    found: Any = run
    if "draft_model" not in left_out:
        found = click.option("--drafter", hidden=True)(found)
    for each in reversed(named):
        if each.metadata and each.name not in left_out:
            flag = f"--{each.name.replace('_', '-')}"
            more: dict[str, Any] = {**each.metadata}
            more["help"] = helps.get(each.name, more["help"])
            more["shell_complete"] = completers.OF_NAMES.get(each.name)
            found = click.option(flag, default=each.default, **more)(found)
    return found


def typed(*names: str) -> list[str]:
    """Choose the parameters that the user of the running command typed."""
    source = click.get_current_context().get_parameter_source
    return [each for each in names if source(each) is ParameterSource.COMMANDLINE]


def is_coloured(colour: bool) -> bool:
    """True where an option wants colours, unless ``NO_COLOR`` is set."""
    return colour and not os.environ.get("NO_COLOR")


def numbers(kind: Callable[[str], Any], example: str) -> Callable[..., tuple[Any, ...] | None]:
    """Callback of an option that takes numbers with commas between.

    It leaves out empty parts, and gives None where there is no value.

    Args:
        kind: turns a part into a number; raises ValueError for what is none.
        example: value that the error for such a part shows.
    """

    def read(
        context: click.Context, parameter: click.Parameter, value: str | None
    ) -> tuple[Any, ...] | None:
        if value is None:
            return None
        try:
            return tuple(kind(part) for part in value.split(",") if part.strip())
        except ValueError:
            raise click.BadParameter(
                f"needs numbers such as {example}, got {value!r}", context, parameter
            ) from None

    return read


def method_names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[str] | None:
    """A comma-separated list of methods, each once and in order; nothing is imported for it."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise click.BadParameter(
            "needs at least one method, for instance auto,suffix", context, parameter
        )
    return list(dict.fromkeys(names))


def check_methods(
    names: Sequence[str],
    given: "Collection[Need]" = (),
    inexact: bool = False,
    overlap: bool = False,
    drafts: Drafts | None = None,
    tree: str | None = None,
) -> None:
    """Refuse unknown and lossy methods, missing and unused resources, and trees nobody can draw.

    This comes before any weights are loaded.

    Args:
        given: resources that the user gives.
        drafts: what drafts, of which the methods must use all.
        tree: that one of the methods must be able to draw.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    methods.require(names, given, overlap)
    if drafts is not None:
        drafts.require_for(map(methods.spec, names))
    trees.require_tree(names, tree, None if drafts is None else drafts.levels)
    require_promise(names, inexact)


def require_promise(names: Sequence[str], inexact: bool) -> None:
    """Refuse lossy methods where nobody allowed them; raises ValueError."""
    lossy = [name for name in names if methods.listing(name).promise == "trades quality"]
    if lossy and not inexact:
        raise ValueError(
            f"method {lossy[0]!r} changes what the model would say; --inexact allows that"
        )


def left_aside(method: "Spec", given: "Collection[Need]", drafts: Drafts) -> list[str]:
    """Options whose resources a method does without, for commands that may take others later.

    Args:
        given: resources that the user gives.
        drafts: of which a head may be one for another method.
    """
    used, fits = methods.taken(method, given), drafts.fits([method])
    aside = [option_of(need) for need in sorted(set(given) - used - {"head"})]
    if "head" in given and not (fits and "head" in used):
        aside.append(
            option_of("head") if fits else f"--draft-model (a head for --method {drafts.method})"
        )
    return aside


def option_of(need: "Need") -> str:
    """The option by which a user gives a resource."""
    return "--draft-model (a trained head)" if need == "head" else f"--{need}"


def check_weights(model: str, dtype: str | None = None, device: str | None = None) -> None:
    """Refuse names that mean nothing and files that are not there, in no time.

    Raises:
        ValueError: with what is wrong and how to mend it; OSError likewise.
    """
    ModelNames(model, dtype=dtype, device=device).require()


def load(
    names: ModelNames,
    method: str | None = "plain",
    overlap: bool = False,
    measure: bool = True,
    tree: str | None = None,
) -> "LanguageModel":
    """The target with a method, and beside it what may draft for it by others.

    Args:
        method: None takes the one that follows from what drafts.
        measure: as ``LanguageModel.with_method`` takes it, as is the tree.
    """
    names.require()
    from draftwood.text.language_model import LanguageModel

    return LanguageModel.of(names.load(overlap), method, measure, tree=tree)


def messages(lm: "LanguageModel", prompt: str, system: str | None) -> Any:
    """A prompt as ``LanguageModel.stream`` takes it, with what the model is told before it.

    Raises:
        ValueError: for a model that cannot be told anything.
    """
    if system is None:
        return prompt
    require_system(lm, system)
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]


def require_system(lm: "LanguageModel", system: str) -> None:
    """Raise ValueError for a model whose chats have no place for a system message."""
    from draftwood.text.prompts import ChatTemplateError

    cure = "write it into the prompt, or take another model"
    if lm.tokenizer.chat_template is None:
        raise ValueError(f"{lm.name} has no chat template, which --system needs; {cure}")
    try:
        lm.encode([{"role": "system", "content": system}, {"role": "user", "content": "."}])
    except ChatTemplateError as error:
        raise ValueError(f"{lm.name} takes no system message ({error.__cause__}); {cure}") from None


def in_processes(names: ModelNames) -> None:
    """Go on in as many processes as are to hold the model; return in the one that decides."""
    from draftwood.cli import processes

    how = names.tp, names.model, names.dtype, names.device
    processes.run_over(*how)
    if not processes.leads(names.tp):
        processes.serve_the_first(*how)


def instructions(lm: "LanguageModel") -> str | None:
    """Name the instructions that multiply the model's matrices; None where PyTorch does that."""
    from draftwood.models.native import NativeModel

    return lm.model.instructions if isinstance(lm.model, NativeModel) else None


def cache(lm: "LanguageModel") -> str | None:
    """Name the type of stored keys and values; None for floats."""
    from draftwood.models.native import NativeModel

    return lm.model.cache if isinstance(lm.model, NativeModel) else None
