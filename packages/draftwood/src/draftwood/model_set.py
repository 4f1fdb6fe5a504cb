"""A target and all that may draft for it: named, loaded once, and made into methods.

A kind of resource that users give is a field of ``ModelNames``, ``ModelSet`` and ``Resources``.
What runs a model is imported when it is loaded, so that refusals take no time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood import methods
from draftwood.drafters.resources import Later, Need, taken
from draftwood.heads.places import require_folder, shipped
from draftwood.loading.names import (
    DEFAULT_MODEL,
    require_cache,
    require_device,
    require_dtype,
    require_model,
)
from draftwood.methods.drafts import IN_AUTO, Drafts
from draftwood.storage.datastores import require_datastore

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from draftwood.costs.calibration import Calibration
    from draftwood.drafters.overlap import Overlap
    from draftwood.heads.trained import TrainedHead
    from draftwood.methods import Listing, Method, MethodSpec
    from draftwood.models.model import Model
    from draftwood.shapes import Shape
    from draftwood.sources.stored_index import StoredIndex
    from draftwood.sources.stored_prior import StoredPrior

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
    dtype: "str | torch.dtype | None" = None,
    device: "str | torch.device | None" = None,
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


@dataclass(frozen=True, eq=False)
class ModelSet:
    """A target and all that may draft for it, loaded once.

    For instance ``ModelSet.load("smollm2-135m", draft_model="smollm2-135m-ctc").method("ctc")``.

    Attributes:
        model: the target.
        tokenizer: of the target.
        name: of the target, for reports.
        calibration: what passes of the target cost.
        prior: what the target says after single tokens.
        draft_model: a second language model; None without one.
        draft_calibration: what its passes cost.
        head: a trained head; None without one.
        takes_shipped: whether methods may take a head that comes with draftwood instead.
        datastore: texts of a file; None without one.
        overlap: how methods that can draft while the target runs do so; None drafts in turn.
    """

    model: "Model"
    tokenizer: "PreTrainedTokenizerBase"
    name: str
    calibration: "Calibration"
    prior: "StoredPrior"
    draft_model: "Model | None" = None
    draft_calibration: "Calibration | None" = None
    head: "TrainedHead | None" = None
    takes_shipped: bool = True
    datastore: "StoredIndex | None" = None
    overlap: "Overlap | None" = None
    how: Mapping[str, Any] = field(default_factory=dict)
    """Type, device and cache that later draft models are loaded with, too."""

    @classmethod
    def load(
        cls,
        target: "str | PreTrainedModel" = DEFAULT_MODEL,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        draft_model: object = None,
        datastore: "str | Path | StoredIndex | None" = None,
        overlap: "bool | Overlap" = False,
        curve: Callable[[int], float] | None = None,
        tp: int = 1,
        **how: Any,
    ) -> "ModelSet":
        """Load a target and what may draft for it; see ``draftwood.load`` for the arguments.

        Args:
            draft_model: a language model, a trained head, or one of each in a list; by name or in
                memory; ``none`` leaves out the head that comes with draftwood. ``Drafts`` too.
            how: dtype, device and cache.

        Raises:
            TypeError, ValueError: as ``draftwood.load``.
        """
        from draftwood.drafters.overlap import overlap_of
        from draftwood.loading.draft_models import require_draft_model
        from draftwood.sources.stored_index import open_datastore

        overlap_of(overlap)
        drafts = draft_model if isinstance(draft_model, Drafts) else Drafts.of(draft_model)
        require_there(target, drafts, datastore, **how)
        require_draft_model(drafts.model)
        opened = _opened(drafts), open_datastore(datastore)  # before weights are loaded
        if isinstance(target, str) and isinstance(drafts.head, str):
            opened[0].head.require_sizes_in(target)
        plain = cls(*_target(target, tokenizer, curve, tp, **how), how=how)
        return plain.with_drafts(opened[0], opened[1], overlap)

    def with_drafts(
        self,
        drafts: Drafts,
        datastore: "str | Path | StoredIndex | None" = None,
        overlap: "bool | Overlap | None" = None,
    ) -> "ModelSet":
        """The same target with what is given in the place of what there was of its kind."""
        from draftwood.costs.calibration import Calibration
        from draftwood.drafters.overlap import overlap_of
        from draftwood.loading.draft_models import load_draft_model
        from draftwood.sources.stored_index import open_datastore

        given: dict[str, Any] = {} if overlap is None else {"overlap": overlap_of(overlap)}
        if drafts.head is not None or not drafts.takes_shipped:
            given |= {"head": _read(_opened(drafts).head), "takes_shipped": drafts.takes_shipped}
        if drafts.model is not None:
            model, folder, dtype = load_draft_model(drafts.model, self.tokenizer, **self.how)
            costs = Calibration(model, folder, dtype)
            given |= {"draft_model": model, "draft_calibration": costs}
        if datastore is not None:
            given["datastore"] = open_datastore(datastore)
        return replace(self, **given)

    @property
    def given(self) -> frozenset[Need]:
        """The resources there are."""
        return given_resources(Drafts(self.draft_model, self.head), self.datastore)

    def default_method(self, measure: bool = True) -> str:
        """The method that follows from what drafts.

        That of the head's kind; for a draft model the one that its costs and measured acceptance
        make fastest; ``auto`` without either.

        Args:
            measure: False does without curves that would have to be measured first.
        """
        if self.draft_model is not None and self.head is None:
            from draftwood.methods.choice import fastest

            ahead = self.overlap is not None
            return fastest(self.calibration, self.draft_calibration, measure, ahead)
        name = Drafts(head=self.head).method
        return IN_AUTO if name == "auto" and self.head and not self._in_auto(self.head) else name

    def method(
        self,
        spec: "str | MethodSpec | Method | None" = None,
        measure: bool = True,
        tree: str | None = None,
    ) -> "Method":
        """A method on the target, with those of the resources that it needs or uses.

        Args:
            spec: None takes ``default_method``.
            measure: False does without what would have to be measured first.
            tree: other than the method's usual one, see ``methods.trees``.

        Raises:
            ValueError: as ``methods.build``.
        """
        from draftwood.loading.vocabulary import vocabulary_digest
        from draftwood.models.shared import shared_passes
        from draftwood.sources.datastore import Datastore
        from draftwood.sources.stored_exits import stored_exits

        chosen = self.default_method(measure) if spec is None else spec
        if isinstance(chosen, methods.Method):
            return chosen
        known, given = methods.spec(chosen), dict[str, Any]()
        takes, prior = taken(known, self.given), self.prior
        if self.draft_model is not None and "draft-model" in takes:
            given["draft_model"] = shared_passes(self.draft_model)
        given["head"] = self._head_for(known)
        if tree is not None:
            given["shape"] = self._shape(chosen, tree)
        if self.datastore is not None and "datastore" in takes:
            self.datastore.require(vocabulary_digest(self.tokenizer), self.model.vocab_size)
            given["datastore"] = Datastore(self.datastore.index)
        if measure or prior.is_known:
            given |= {
                "prior": Later(lambda: prior.table),
                "exits": Later(lambda: stored_exits(prior)),
            }
        given["curve"] = Later(partial(self.calibration.followed, measure))
        overlap = self.overlap if known.drafts_ahead else None
        return methods.build(chosen, self.model, **given, overlap=overlap)

    def _head_for(self, known: "Listing | MethodSpec") -> "TrainedHead | None":
        """The head that was given, or the one that comes with draftwood for this model."""
        from draftwood.heads.folder import shipped_for
        from draftwood.models.native import NativeModel

        if "head" not in known.needs | known.uses:
            return None
        if {"head", "draft-model"} & known.needs:
            return self.head if "head" in taken(known, self.given) else None
        if self.head is not None and Drafts(head=self.head).method == "auto":
            return self.head
        if not self.takes_shipped:
            return None
        found = shipped_for(self.model, IN_AUTO) if isinstance(self.model, NativeModel) else None
        return found if found is not None and self._in_auto(found) else None

    def _shape(self, chosen: "str | MethodSpec", tree: str) -> "Shape":
        """The shape of a tree for a method, as far as the head's levels reach."""
        return methods.shape_of(tree, methods.recipe(chosen), Drafts(head=self.head).levels)

    def _in_auto(self, head: "TrainedHead") -> bool:
        """True if ``auto`` can draft with an EAGLE head for this target."""
        from draftwood.heads.native_eagle import why_not
        from draftwood.models.native import NativeModel

        config: Any = head.head.config
        return isinstance(self.model, NativeModel) and why_not(config) is None


def _target(
    model: "str | PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    curve: Callable[[int], float] | None,
    tp: int,
    cache: str | None = None,
    **how: Any,
) -> "tuple[Model, PreTrainedTokenizerBase, str, Calibration, StoredPrior]":
    """The first fields of a ``ModelSet``."""
    from draftwood.costs.calibration import Calibration
    from draftwood.loading.draft_models import in_transformers
    from draftwood.loading.models import load_model
    from draftwood.sources.stored_prior import StoredPrior, usual_text

    if isinstance(model, str):
        loaded = load_model(model, cache=cache, processes=tp, **how)
        target, tokenizer, name = loaded.model, tokenizer or loaded.tokenizer, model
        calibration = Calibration(target, loaded.folder, loaded.dtype, curve)
    elif tp > 1:
        raise ValueError("several processes load a model by its name; give one, or leave tp out")
    elif tokenizer is None:
        raise ValueError(
            "a model given as an object needs its tokenizer: draftwood.load(model, tokenizer)"
        )
    else:
        target, name = in_transformers(model, cache), model.config.name_or_path
        name, calibration = name or type(model).__name__, Calibration(target, curve=curve)
    prior = StoredPrior(target, usual_text(tokenizer), calibration.folder)
    return target, tokenizer, name, calibration, prior


def _opened(drafts: Drafts) -> Drafts:
    """Open a head's folder by its name, without its weights."""
    from draftwood.heads.folder import open_folder

    named = isinstance(drafts.head, str)
    return replace(drafts, head=open_folder(drafts.head)) if named else drafts


def _read(head: Any) -> "TrainedHead | None":
    return head.read() if hasattr(head, "read") else head


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
