"""Options that several commands share, and what they turn into."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from draftwood.sampling_params import OPTIONS, SamplingParams
from draftwood.text.arguments import DEFAULT_MODEL, require_weights

if TYPE_CHECKING:
    from draftwood.heads.folder import TrainedHead
    from draftwood.models.model import Model
    from draftwood.text.language_model import LanguageModel

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


class TextFile(click.ParamType):
    """A file that is read as text."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return Path(value).read_text(encoding="utf-8")
        except OSError as error:
            self.fail(f"cannot read {value}: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{value} is not UTF-8 text", param, ctx)


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
    if option.kind in ("schema", "grammar"):
        return click.option(flag, type=TextFile(), metavar="FILE", **more)
    kind = click.IntRange if option.kind == "whole" else click.FloatRange
    span = kind(option.least, option.most, min_open=option.above)  # type: ignore[arg-type]
    return click.option(flag, type=span, default=default, show_default=default is not None, **more)


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


tp = click.option(
    "--tp",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that hold the model in parts, one to a GPU where there are any.",
)
datastore = click.option(
    "--datastore",
    metavar="FILE",
    help="Texts that auto and suffix copy from too, of 'draftwood datastore build'.",
)
overlap = click.option(
    "--overlap",
    is_flag=True,
    help="Let the draft model draft while the model runs, where each has a core or device.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)


def model_options(command: Command) -> Command:
    """Which weights, and how they are run."""
    for option in (
        click.option("--device", help="For instance cuda.  [default: the first GPU, else the CPU]"),
        click.option(
            "--dtype",
            help=(
                "int8, int4, bfloat16, float32, ...  [default: int8 for quantised weights on CPUs,"
                " else their own]"
            ),
        ),
        click.option(
            "--cache",
            help="int8 rounds keys and values to 8 bits, on CPUs.  [default: floats]",
        ),
        click.option(
            "--drafter",
            metavar="FOLDER",
            help=(
                "A trained drafter's folder or name, for methods that draft with one; none leaves"
                " out the one that auto takes by itself."
            ),
        ),
        click.option(
            "--draft-model",
            help="A smaller model of the same vocabulary, for methods that draft with one.",
        ),
        click.option(
            "--model",
            default=DEFAULT_MODEL,
            show_default=True,
            help="A built-in name, a folder, a GGUF file or a Hugging Face id.",
        ),
    ):
        command = option(command)
    return command


def method_names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[str] | None:
    """A comma-separated list of methods, each once and in order; nothing is imported for it."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise click.BadParameter(
            "needs at least one method, for instance auto,lookup", context, parameter
        )
    return list(dict.fromkeys(names))


def check_methods(
    names: Sequence[str],
    draft_model: str | None,
    inexact: bool = False,
    drafter: str | None = None,
    datastore: str | None = None,
    overlap: bool = False,
) -> None:
    """Refuse unknown and lossy methods, missing and unused draft models, drafters and datastores.

    This comes before any weights are loaded.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    from draftwood import methods
    from draftwood.heads.places import named

    methods.require(
        names,
        draft_model is not None,
        drafter=named(drafter) is not None,
        datastore=datastore is not None,
        overlap=overlap,
    )
    lossy = [name for name in names if methods.listing(name).promise == "trades quality"]
    if lossy and not inexact:
        raise ValueError(
            f"method {lossy[0]!r} changes what the model would say; --inexact allows that"
        )


def check_weights(
    model: str,
    draft_model: str | None = None,
    drafter: str | None = None,
    datastore: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    cache: str | None = None,
) -> None:
    """Refuse names that mean nothing and files that are not there, in no time.

    Raises:
        ValueError: with what is wrong and how to mend it; OSError likewise.
    """
    require_weights((model, draft_model), drafter, datastore, dtype, device, cache)


def instructions(lm: "LanguageModel") -> str | None:
    """What the CPU multiplies the model's matrices with; None where PyTorch does that."""
    from draftwood.models.native import NativeModel

    return lm.model.instructions if isinstance(lm.model, NativeModel) else None


def cache(lm: "LanguageModel") -> str | None:
    """How keys and values are stored; None in floats."""
    from draftwood.models.native import NativeModel

    return lm.model.cache if isinstance(lm.model, NativeModel) else None


class LoadedModels:
    """A target by name, its draft model, and any number of methods on both.

    Args:
        model: as ``draftwood.load`` takes it.
        draft_model: likewise; it is loaded at once, but only methods that use it get it.
        dtype: of both, likewise, as are the device and the cache.
        drafter: folder of a trained drafter; likewise.
        tp: processes that hold the target in parts.
        datastore: a file of texts, for the methods that copy from one.
        overlap: whether methods that can draft while the target runs do so.
    """

    def __init__(
        self,
        model: str,
        draft_model: str | None,
        dtype: str | None,
        device: str | None,
        cache: str | None = None,
        drafter: str | None = None,
        tp: int = 1,
        datastore: str | None = None,
        overlap: bool = False,
    ) -> None:
        check_weights(model, draft_model, drafter, datastore, dtype, device, cache)
        import draftwood
        from draftwood.heads.folder import named, open_folder
        from draftwood.text.datastore import open_datastore
        from draftwood.text.draft_models import load_draft_model

        given = named(drafter)
        stored = None if given is None else open_folder(given)
        self.datastore, self.overlap = open_datastore(datastore), overlap
        self.plain = draftwood.load(
            model, method="plain", dtype=dtype, device=device, cache=cache, tp=tp
        )
        self.trained: TrainedHead | str | None = drafter if stored is None else stored.read()
        self.draft: Model | None = None
        if draft_model is not None:
            self.draft = load_draft_model(draft_model, self.plain.tokenizer, dtype, device, cache)

    def using(self, method: str, measure: bool = True) -> "LanguageModel":
        """The target with this method; see ``LanguageModel.with_method``."""
        from draftwood import methods

        draft = self.draft if methods.uses_draft_model(method) else None
        trained = self.trained if methods.uses_drafter(method) else None
        texts = self.datastore if methods.uses_datastore(method) else None
        overlap = self.overlap and methods.drafts_ahead(method)
        return self.plain.with_method(method, draft, measure, trained, texts, overlap)
