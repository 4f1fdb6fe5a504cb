"""A target and all that may draft for it, loaded once and made into methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from draftwood import methods
from draftwood.costs.calibration import Calibration
from draftwood.drafters.drafter import overlap_of
from draftwood.drafters.resources import Later, Need, field_of
from draftwood.heads import packed
from draftwood.heads.folder import StoredHead
from draftwood.loading.draft_models import load_draft_model, load_target
from draftwood.loading.hub import folder_of_settings
from draftwood.loading.names import BUILTIN_NAMES, DEFAULT_MODEL
from draftwood.methods.drafts import IN_AUTO, Drafts
from draftwood.methods.needs import Spec
from draftwood.model_names import ModelNames
from draftwood.models.model import Model
from draftwood.sources.stored_prior import StoredPrior
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from draftwood.drafters.overlap import Overlap


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
        drafts: a second language model and a trained head, loaded.
        draft_calibration: what passes of that language model cost.
        files: what was opened of files, by the resource that it is.
        overlap: how methods that can draft while the target runs do so; None drafts in turn.
        how: type, device and cache that later draft models are loaded with, too.
    """

    model: Model
    tokenizer: AnyTokenizer
    name: str
    calibration: Calibration
    prior: StoredPrior
    drafts: Drafts = field(default_factory=Drafts)
    draft_calibration: Calibration | None = None
    files: Mapping[Need, Any] = field(default_factory=dict)
    overlap: "Overlap | None" = None
    how: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        names: ModelNames | object = DEFAULT_MODEL,
        tokenizer: AnyTokenizer | None = None,
        *,
        overlap: "bool | Overlap" = False,
        curve: Callable[[int], float] | None = None,
        **more: Any,
    ) -> "ModelSet":
        """Load a target and what may draft for it; see ``draftwood.load`` for the arguments.

        Args:
            names: of all of it; or the target alone, beside further fields of ``ModelNames``.

        Raises:
            TypeError, ValueError: as ``draftwood.load``.
        """
        ahead = overlap_of(overlap)
        names = names if isinstance(names, ModelNames) else ModelNames(**{"model": names, **more})
        names.require()
        opened = names.opened()  # before weights are loaded
        if isinstance(names.model, str) and isinstance(head := opened.drafts.head, StoredHead):
            head.require_name(names.model, BUILTIN_NAMES)
            head.require_sizes_in(folder_of_settings(names.model), names.model)
        loaded = load_target(names.model, tokenizer, names.tp, adapter=names.adapter, **names.how)
        costs = Calibration(loaded.model, loaded.folder, loaded.dtype, curve)
        prior = StoredPrior.for_texts(loaded.model, loaded.tokenizer, costs.folder)
        plain = cls(loaded.model, loaded.tokenizer, loaded.name, costs, prior, how=names.how)
        return plain.with_names(opened, ahead)

    def with_names(self, names: ModelNames, overlap: "bool | Overlap | None" = None) -> "ModelSet":
        """The same target with what drafts in the place of what there was of its kind.

        Args:
            names: of what drafts; the target's are passed over.
        """
        ahead = self.overlap if overlap is None else overlap_of(overlap)
        opened, drafts, costs = names.opened(), self.drafts, self.draft_calibration
        given, files = opened.drafts, {**self.files, **opened.files}
        if given.head is not None or not given.takes_shipped:
            head = given.head.read() if isinstance(given.head, StoredHead) else given.head
            drafts = replace(drafts, head=head, takes_shipped=given.takes_shipped)
        if given.model is not None:
            loaded = load_draft_model(given.model, self.tokenizer, **self.how)
            costs = Calibration(loaded.model, loaded.folder, loaded.dtype)
            drafts = replace(drafts, model=loaded.model)
        return replace(self, drafts=drafts, draft_calibration=costs, files=files, overlap=ahead)

    @property
    def given(self) -> frozenset[Need]:
        """The resources there are."""
        return self.drafts.given | frozenset(self.files)

    def default_method(self, measure: bool = True) -> str:
        """The method that follows from what drafts.

        That of the head's kind; for a draft model the one that its costs and measured acceptance
        make fastest; ``auto`` without either.

        Args:
            measure: False does without curves that would have to be measured first.
        """
        drafts = self.drafts
        if drafts.model is not None and drafts.head is None:
            from draftwood.methods.choice import fastest

            return fastest(self.calibration, self.draft_calibration, measure, bool(self.overlap))
        in_auto = drafts.head is None or packed.runs_for(self.model, drafts.head)
        return IN_AUTO if drafts.method == "auto" and not in_auto else drafts.method

    def method(
        self,
        spec: "str | methods.MethodSpec | methods.Method | None" = None,
        measure: bool = True,
        tree: str | None = None,
    ) -> "methods.Method":
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
        parts: dict[str, Any] = self._resources(known, measure)
        if tree is not None:
            parts["shape"] = methods.shape_of(tree, methods.recipe(chosen), self.drafts.levels)
        overlap = self.overlap if known.drafts_ahead else None
        with packed.probe_kept(self.calibration, self.drafts.head is not None):
            return methods.build(chosen, self.model, **parts, overlap=overlap)

    def _resources(self, known: Spec, measure: bool) -> dict[str, Later]:
        """All that there is for a method, by the field of ``Resources`` that it is."""
        files = self.files.items()
        found = {field_of(need): Later(partial(self.source, opened)) for need, opened in files}
        found["head"] = Later(partial(self.drafts.head_for, known, self.calibration))
        found["mtp"] = Later(partial(self.drafts.mtp_of, self.model))
        found["curve"] = Later(partial(self.calibration.followed, measure))
        if self.drafts.model is not None:
            from draftwood.models.shared import shared_passes

            found["draft_model"] = Later(partial(shared_passes, self.drafts.model))
        if measure or self.prior.is_known:
            found["stored"] = Later(lambda: self.prior)
            found["prior"] = Later(partial(self.prior.ready, measure))
        return found

    def source(self, opened: Any) -> Any:
        """Open what drafts from a file; raises ValueError for tokens of another tokenizer."""
        from draftwood.loading.vocabulary import vocabulary_digest

        return opened.source(vocabulary_digest(self.tokenizer), self.model.vocab_size)
