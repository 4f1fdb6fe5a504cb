"""A target and all that may draft for it, loaded once and made into methods.

A kind of resource that users give is a field of ``ModelNames``, ``ModelSet`` and ``Resources``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood import methods
from draftwood.costs.calibration import Calibration
from draftwood.drafters.overlap import Overlap, overlap_of
from draftwood.drafters.resources import Later, Need
from draftwood.heads.folder import StoredHead, open_folder, shipped_for
from draftwood.heads.native_eagle import why_not
from draftwood.heads.trained import TrainedHead
from draftwood.loading.hub import blocks_of, described
from draftwood.loading.models import load_model
from draftwood.loading.names import BUILTIN_NAMES, DEFAULT_MODEL
from draftwood.methods.drafts import IN_AUTO, Drafts
from draftwood.model_names import given_resources, require_there
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.sources.stored_prior import StoredPrior, usual_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from draftwood.heads.exits import Exits
    from draftwood.methods import Listing, Method, MethodSpec
    from draftwood.shapes import Shape
    from draftwood.sources.datastore import Datastore
    from draftwood.sources.stored_index import StoredIndex


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
        how: type, device and cache that later draft models are loaded with, too.
    """

    model: Model
    tokenizer: "PreTrainedTokenizerBase"
    name: str
    calibration: Calibration
    prior: StoredPrior
    draft_model: Model | None = None
    draft_calibration: Calibration | None = None
    head: TrainedHead | None = None
    takes_shipped: bool = True
    datastore: "StoredIndex | None" = None
    overlap: Overlap | None = None
    how: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        target: "str | PreTrainedModel" = DEFAULT_MODEL,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        draft_model: object = None,
        datastore: "str | Path | StoredIndex | None" = None,
        overlap: bool | Overlap = False,
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
        ahead = overlap_of(overlap)
        drafts = draft_model if isinstance(draft_model, Drafts) else Drafts.of(draft_model)
        require_there(target, drafts, datastore, **how)
        if drafts.model is not None:
            from draftwood.loading.draft_models import require_draft_model

            require_draft_model(drafts.model)
        opened = _opened(drafts), _indexed(datastore)  # before weights are loaded
        if isinstance(target, str) and isinstance(drafts.head, str):
            _require_target(opened[0].head, target)
        plain = cls(*_target(target, tokenizer, curve, tp, **how), how=how)
        return plain.with_drafts(*opened, ahead)

    def with_drafts(
        self,
        drafts: Drafts,
        datastore: "str | Path | StoredIndex | None" = None,
        overlap: bool | Overlap | None = None,
    ) -> "ModelSet":
        """The same target with what is given in the place of what there was of its kind."""
        given: dict[str, Any] = {} if overlap is None else {"overlap": overlap_of(overlap)}
        if drafts.head is not None or not drafts.takes_shipped:
            given |= {"head": _read(_opened(drafts).head), "takes_shipped": drafts.takes_shipped}
        if drafts.model is not None:
            from draftwood.loading.draft_models import load_draft_model

            model, folder, dtype = load_draft_model(drafts.model, self.tokenizer, **self.how)
            costs = Calibration(model, folder, dtype)
            given |= {"draft_model": model, "draft_calibration": costs}
        if datastore is not None:
            given["datastore"] = _indexed(datastore)
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
        chosen = self.default_method(measure) if spec is None else spec
        if isinstance(chosen, methods.Method):
            return chosen
        known = methods.spec(chosen)
        there = self._resources(known, measure)
        taken: Any = {
            need.replace("-", "_"): there[need] for need in methods.taken(known, frozenset(there))
        }
        if tree is not None:
            taken["shape"] = self._shape(chosen, tree)
        overlap = self.overlap if known.drafts_ahead else None
        return methods.build(chosen, self.model, **taken, overlap=overlap)

    def _resources(self, known: "Listing | MethodSpec", measure: bool) -> dict[Need, Later[Any]]:
        """All that there is for a method, each made when it is first asked for."""
        found: dict[Need, Later[Any]] = {
            "head": Later(partial(self._head_for, known)),
            "datastore": Later(self._texts),
            "curve": Later(partial(self.calibration.followed, measure)),
        }
        if self.draft_model is not None:
            found["draft-model"] = Later(self._shared)
        if measure or self.prior.is_known:
            found["prior"] = Later(lambda: self.prior.table)
            found["exits"] = Later(self._exits)
        return found

    def _shared(self) -> Model | None:
        """The draft model, passes of which serve all texts that wait for one."""
        from draftwood.models.shared import shared_passes

        return None if self.draft_model is None else shared_passes(self.draft_model)

    def _exits(self) -> "Exits":
        """Maps of the target's early exits."""
        from draftwood.sources.stored_exits import stored_exits

        return stored_exits(self.prior)

    def _texts(self) -> "Datastore | None":
        """The datastore; raises ValueError where it holds tokens of another tokenizer."""
        if self.datastore is None:
            return None
        from draftwood.loading.vocabulary import vocabulary_digest
        from draftwood.sources.datastore import Datastore

        self.datastore.require(vocabulary_digest(self.tokenizer), self.model.vocab_size)
        return Datastore(self.datastore.index)

    def _head_for(self, known: "Listing | MethodSpec") -> TrainedHead | None:
        """The head that was given, or the one that comes with draftwood for this model."""
        if "head" not in known.needs | known.uses:
            return None
        if {"head", "draft-model"} & known.needs:
            return self.head if "head" in methods.taken(known, self.given) else None
        if self.head is not None and Drafts(head=self.head).method == "auto":
            return self.head
        if not self.takes_shipped or not isinstance(self.model, NativeModel):
            return None
        found = shipped_for(self.model, IN_AUTO)
        return found if found is not None and self._in_auto(found) else None

    def _shape(self, chosen: "str | MethodSpec", tree: str) -> "Shape":
        """The shape of a tree for a method, as far as the head's levels reach."""
        return methods.shape_of(tree, methods.recipe(chosen), Drafts(head=self.head).levels)

    def _in_auto(self, head: TrainedHead) -> bool:
        """True if ``auto`` can draft with an EAGLE head for this target."""
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
        from draftwood.loading.draft_models import in_transformers

        target, name = in_transformers(model, cache), model.config.name_or_path
        name, calibration = name or type(model).__name__, Calibration(target, curve=curve)
    prior = StoredPrior(target, usual_text(tokenizer), calibration.folder)
    return target, tokenizer, name, calibration, prior


def _require_target(head: StoredHead, target: str) -> None:
    """Refuse a head of another model by what is known of that without its weights.

    Of a model on the hub only the settings are fetched.
    """
    head.require_name(target, BUILTIN_NAMES)
    folder = Path(target).expanduser()
    if folder.is_file():
        folder = blocks_of(target) or folder
    elif target not in BUILTIN_NAMES:
        folder = described(target)
    head.require_sizes_in(folder, target)


def _indexed(datastore: "str | Path | StoredIndex | None") -> "StoredIndex | None":
    """Open a datastore by its file's name."""
    if datastore is None:
        return None
    from draftwood.sources.stored_index import open_datastore

    return open_datastore(datastore)


def _opened(drafts: Drafts) -> Drafts:
    """Open a head's folder by its name, without its weights."""
    named = isinstance(drafts.head, str)
    return replace(drafts, head=open_folder(drafts.head)) if named else drafts


def _read(head: Any) -> TrainedHead | None:
    return head.read() if hasattr(head, "read") else head
