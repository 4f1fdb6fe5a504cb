"""Names of a target and of all that may draft for it, refused before anything is loaded.

Nothing that runs a model is imported, so that refusals take no time.
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.drafters.resources import Need
from draftwood.heads.places import require_folder, shipped
from draftwood.loading.names import (
    DEFAULT_MODEL,
    require_cache,
    require_device,
    require_dtype,
    require_model,
)
from draftwood.methods.drafts import Drafts
from draftwood.storage.datastores import require_datastore

if TYPE_CHECKING:
    from draftwood.model_set import ModelSet

_DTYPES = "int8, int4, bfloat16, float32, ...  [default: int8 for quantised weights on CPUs, else"
_DRAFTS = (
    "A smaller model of the same vocabulary that drafts, or a trained head, from which the method"
    " follows; none leaves out the head that auto takes by itself. Repeatable where several methods"
    " run: one of each kind."
)


def _named(help: str, default: Any = None, **more: Any) -> Any:
    """A field that commands have as an option, with what click is told of it."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class ModelNames:
    """Names of all that is loaded. Options of commands are made of the fields.

    Attributes:
        model: a built-in name, a folder, a GGUF file or a Hugging Face id.
        draft_model: a second language model, a trained head, or one of each.
        datastore: a file of texts.
        dtype: as ``draftwood.load`` takes it, as are the device and the cache.
        tp: processes that hold the model in parts.

    Raises:
        ValueError: for two draft models of one kind.
    """

    model: str = _named(
        "A built-in name, a folder, a GGUF file or a Hugging Face id.",
        DEFAULT_MODEL,
        show_default=True,
    )
    draft_model: tuple[str, ...] = _named(_DRAFTS, (), metavar="NAME|FOLDER|FILE", multiple=True)
    datastore: str | None = _named(
        "Texts that auto and suffix copy from too, of 'draftwood datastore build'.", metavar="FILE"
    )
    dtype: str | None = _named(f"{_DTYPES} their own]")
    device: str | None = _named("For instance cuda.  [default: the first GPU, else the CPU]")
    cache: str | None = _named("int8 rounds keys and values to 8 bits, on CPUs.  [default: floats]")
    tp: int = 1

    def __post_init__(self) -> None:
        given: Any = self.draft_model
        several = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
        object.__setattr__(self, "draft_model", tuple(map(str, several)))
        _ = self.drafts

    @cached_property
    def drafts(self) -> Drafts:
        """Draft model and head, sorted by kind."""
        return Drafts.of(self.draft_model)

    @property
    def given(self) -> frozenset[Need]:
        """The resources that are named."""
        return given_resources(self.drafts, self.datastore)

    def require(self) -> None:
        """Refuse names that mean nothing and files that are not there, in no time."""
        require_there(self.model, self.drafts, self.datastore, self.dtype, self.device, self.cache)

    def load(self, overlap: bool = False) -> "ModelSet":
        """Load all of it; raises what ``ModelSet.load`` does."""
        from draftwood.model_set import ModelSet

        named = {each: getattr(self, each) for each in ModelNames.__dataclass_fields__}
        return ModelSet.load(named.pop("model"), overlap=overlap, **named)

    def from_anywhere(self) -> "dict[str, Any]":
        """The fields that name what is here, with paths that hold in other folders too."""
        files = {"model": self.model, "datastore": self.datastore}
        found = {name: _absolute(file) for name, file in files.items() if file}
        return {**found, "draft_model": tuple(map(_absolute, self.draft_model))}


def given_resources(drafts: Drafts, datastore: object = None) -> frozenset[Need]:
    """The resources that a user gives."""
    texts: frozenset[Need] = frozenset() if datastore is None else frozenset({"datastore"})
    return drafts.given | texts


def require_there(
    model: object,
    drafts: Drafts,
    datastore: object = None,
    dtype: Any = None,
    device: Any = None,
    cache: str | None = None,
) -> None:
    """Refuse names that mean nothing, and files that are not there; objects are passed over.

    Raises:
        ValueError: for a name that means nothing.
        FileNotFoundError: for a path where nothing is.
    """
    require_dtype(dtype)
    require_cache(cache)
    require_device(device)
    if isinstance(model, str):
        require_model(model)
    if isinstance(drafts.model, str):
        require_model(drafts.model, shipped())
    if isinstance(drafts.head, str):
        require_folder(drafts.head)
    if isinstance(datastore, (str, Path)):
        require_datastore(Path(datastore))


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
