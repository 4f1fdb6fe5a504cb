"""Names of a target and of all that may draft for it, refused before anything is loaded.

A kind of resource that users give as a file is a field here, a keyword of ``draftwood.load``, and
one of ``drafters.resources``.

Nothing that runs a model is imported, so that refusals take no time.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from draftwood.drafters.resources import FILES, Need, field_of
from draftwood.heads.places import require_folder, shipped
from draftwood.loading import names
from draftwood.methods.drafts import Drafts
from draftwood.storage.home import absolute
from draftwood.validation import require_file

if TYPE_CHECKING:
    from draftwood.model_set import ModelSet

_MODELS = "A built-in name, a folder, a GGUF file or a Hugging Face id."
_TEXTS = "Texts that auto and suffix copy from too, of 'draftwood datastore build'."
_DRAFTS = (
    "A smaller model of the same vocabulary that drafts, or a trained head, from which the method"
    " follows; none leaves out the head that auto takes by itself. Repeatable where several methods"
    " run: at most one language model and one trained head."
)


def _named(help: str, default: Any = None, **more: Any) -> Any:
    """A field that commands have as an option, with what click is told of it."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class ModelNames:
    """Names of all that is loaded, or what they mean, where that is in memory.

    Options of commands are made of the fields.

    Attributes:
        model: a built-in name, a folder, a GGUF file or a Hugging Face id.
        draft_model: a second language model, a trained head, or one of each.
        datastore: a file of texts.
        dtype: as ``draftwood.load`` takes it, as are the device and the cache.
        adapter: of the target.
        tp: processes that hold the model in parts.

    Raises:
        ValueError: for two language models or two trained heads that draft.
    """

    model: str = _named(_MODELS, names.DEFAULT_MODEL, show_default=True)
    draft_model: tuple[str, ...] = _named(_DRAFTS, (), metavar="NAME|FOLDER|FILE", multiple=True)
    datastore: str | None = _named(_TEXTS, metavar="FILE")
    dtype: str | None = _named("int8, int4, bfloat16, ...  [default: int8 on CPUs if quantised]")
    device: str | None = _named("For instance cuda.  [default: the first GPU, else the CPU]")
    cache: str | None = _named("int8 rounds keys and values to 8 bits, on CPUs.  [default: floats]")
    adapter: str | None = _named("A LoRA adapter of PEFT, added to the model.", metavar="FOLDER|ID")
    tp: int = 1

    def __post_init__(self) -> None:
        given: Any = self.draft_model
        if not isinstance(given, (tuple, Drafts)):
            several = given if isinstance(given, list) else () if given is None else (given,)
            object.__setattr__(self, "draft_model", tuple(several))
        _ = self.drafts

    @cached_property
    def drafts(self) -> Drafts:
        """Draft model and head, sorted by kind."""
        return Drafts.of(self.draft_model)

    @property
    def files(self) -> dict[Need, Any]:
        """The resources that are given as files."""
        named: dict[Need, Any] = {need: getattr(self, field_of(need)) for need in FILES}
        return {need: file for need, file in named.items() if file is not None}

    @property
    def given(self) -> frozenset[Need]:
        """The resources that are named."""
        return self.drafts.given | frozenset(self.files)

    @property
    def how(self) -> dict[str, Any]:
        """Type, device and cache of models that are loaded by name."""
        return {"dtype": self.dtype, "device": self.device, "cache": self.cache}

    def require(self) -> None:
        """Refuse names that mean nothing and files that are not there; objects are passed over.

        Raises:
            ValueError: for a name that means nothing.
            FileNotFoundError: for a path where nothing is.
        """
        names.require_how(self.dtype, self.device, self.cache)
        if isinstance(self.model, str):
            names.require_model(self.model)
        names.require_adapter(self.adapter, self.tp)
        if isinstance(self.drafts.model, str):
            names.require_model(self.drafts.model, shipped())
        if isinstance(self.drafts.head, str):
            require_folder(self.drafts.head)
        for need, file in self.files.items():
            if isinstance(file, (str, Path)):
                require_file(Path(file), need)

    def opened(self) -> "ModelNames":
        """The same, what drafts opened but for its weights.

        Raises:
            TypeError, ValueError: for what cannot draft.
        """
        from draftwood.heads.folder import open_folder
        from draftwood.loading.draft_models import require_draft_model

        drafts, files = self.drafts, self.files
        require_draft_model(drafts.model)
        if isinstance(drafts.head, str):
            drafts = replace(drafts, head=open_folder(drafts.head))
        found = {field_of(need): resolve_name(FILES[need])(files[need]) for need in files}
        return replace(self, **{"draft_model": drafts, **found})

    def load(self, overlap: bool = False) -> "ModelSet":
        """Load all of it; raises what ``ModelSet.load`` does."""
        from draftwood.model_set import ModelSet

        return ModelSet.load(self, overlap=overlap)

    def from_anywhere(self) -> "dict[str, Any]":
        """The fields that name what is here, with paths that hold in other folders too."""
        found: Any = {field_of(need): absolute(file) for need, file in self.files.items()}
        drafts = tuple(absolute(str(each)) for each in self.draft_model)
        found["adapter"] = self.adapter and absolute(self.adapter)
        return {"model": absolute(self.model), "draft_model": drafts, **found}
