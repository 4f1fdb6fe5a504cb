"""Train a drafter from a data set, and write its folder."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from draftwood.heads import folder as folders
from draftwood.heads.trained import TrainedHead
from draftwood.loading.models import LoadedModel, load_model
from draftwood_torch.tensors import as_tensor
from draftwood_train.checkpoints import NAME
from draftwood_train.data.dataset import Dataset, Split
from draftwood_train.data.manifest import Manifest
from draftwood_train.flatness import flattest
from draftwood_train.going_on import going_on
from draftwood_train.loop import BrokenLossError, Outcome, Trainer, TrainingSettings
from draftwood_train.packing import RowPacking
from draftwood_train.places import alone_in, require_resumed
from draftwood_train.plan import TrainingPlan, bytes_on_disk, planned_tokens, tokens_per_second
from draftwood_train.recipe import DrafterRecipe, TargetWeights
from draftwood_train.target import layers_of, target_weights

DRAFT_VOCABULARY = 8192
"""Tokens that a new drafter drafts, unless more or fewer are asked for."""


@dataclass(frozen=True)
class Training:
    """One training: recipe, data and output folder.

    Attributes:
        data: folder of a data set.
        output: folder of the drafter; checkpoints and logs lie beside it.
        draft_vocabulary: number of tokens that it drafts, the data's most frequent; None takes
            those of the drafter to start from, else 8192.
        start: folder of a drafter to start from; None builds a new one.
        model: the target's name here; None takes the one in the data.
        resume: whether to go on after the newest checkpoint.
        command: as it was given, for the card.

    Raises:
        ValueError: for data, a target and a drafter that do not fit each other.
    """

    recipe: DrafterRecipe
    data: Path
    output: Path
    settings: TrainingSettings
    draft_vocabulary: int | None = None
    start: Path | None = None
    model: str | None = None
    resume: bool = False
    command: str = ""

    @property
    def folder(self) -> Path:
        """Folder of checkpoints and logs."""
        return self.output.with_name(f"{self.output.name}.training")

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.read(self.data)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The target as it wrote the data."""
        return load_model(self.target_name, self.manifest.target.products, "cpu")

    @cached_property
    def dataset(self) -> Dataset:
        return Dataset.open(self.data, self.loaded.model)

    @property
    def target_name(self) -> str:
        """The target's name here."""
        return self.model or self.manifest.target.name

    def run(self, say: Callable[[str], None] = lambda line: None) -> Outcome:
        """Train, and put the best drafter into its folder.

        Raises:
            BrokenLossError: if the loss is NaN or infinite; the best drafter until then is stored
                where steps had made it better.
            OSError: for an output folder that cannot be written, or in which another training goes
                on.
        """
        self._require_place()
        self._require_answers()
        self._require_prompts()
        start = self._start()
        tokens = self._draft_tokens(start)
        plan = self.plan(tokens)
        plan.require_room(self.folder)
        with alone_in(self.folder):
            require_resumed(self.folder, self._begun, self.resume)  # by who had it until now
            return self._trained(start, tokens, plan, say)

    @property
    def _begun(self) -> bool:
        return (self.folder / NAME).is_file()

    @property
    def _is_in_place(self) -> bool:
        """True where the head is stored in the folder that it started from, however spelled."""
        return self.start is not None and self.start.resolve() == self.output.resolve()

    def _trained(
        self,
        start: TrainedHead | None,
        tokens: Tensor,
        plan: TrainingPlan,
        say: Callable[[str], None],
    ) -> Outcome:
        """Train in a folder that is this training's own, and store the best drafter."""
        if self.resume and not self._begun:
            say(f"there is no checkpoint in {self.folder}, so this training starts at step 0")
        target = self.target(tokens)
        train = self._chosen(target)
        trainer = self._trainer(start, target, train, say)
        say(str(replace(plan, data=train.tokens)))
        if not trainer.optimisers.has_matrices:
            say("all weights learn with AdamW, at --other-rate; --learning-rate changes none")
        taken, known = getattr(self.recipe, "newest", 0), len(target.last_layers)
        if start is None and taken > known:
            say(
                f"{self.target_name} has {known} layers, so the lowest {taken - known} of the"
                f" {taken} that were to start from its own have random weights; fewer --layers"
                " have its weights in all"
            )
        if start is not None and not self._is_of(start):
            say(
                f"{self.start} was trained for {start.target.name}, whose weights are not those of"
                f" {self.target_name}; its own are where this training starts"
            )
        try:
            outcome = trainer.run()
        except BrokenLossError as error:
            raise BrokenLossError(f"{error}; {self._rescued(trainer, tokens)}") from None
        self._store(outcome, tokens)
        return outcome

    def _rescued(self, trainer: Trainer, tokens: Tensor) -> str:
        """Store the best drafter of a training whose loss broke, and say how to go on."""
        if not trainer.state.best_step:
            return (
                "no step had made the drafter better, so none is stored; train into another folder"
                " with a lower --learning-rate"
            )
        self._store(trainer.outcome("stopped"), tokens)
        return (
            f"the best drafter until then is in {self.output}; go on with --from {self.output}, a"
            " lower --learning-rate and another folder"
        )

    def _require_place(self) -> None:
        """Refuse an output folder that is taken, before a target is loaded."""
        folders.require_place(self.output)
        require_resumed(self.folder, self._begun, self.resume)
        if not self._begun and not self._is_in_place and folders.is_drafter(self.output):
            raise ValueError(
                f"there is a drafter in {self.output} already; name a new folder, delete it, or go"
                f" on from it with --from {self.output}"
            )

    def _require_answers(self) -> None:
        """Refuse data of which every text is held out, or none, before a target is loaded."""
        counts = self.manifest.counts()
        if counts["texts"] and not counts["held_out_texts"]:
            raise ValueError(
                f"no text in {self.data} is held out, so no drafter can be judged; give 'draftwood"
                " train data' more --tokens"
            )
        if 0 < counts["texts"] == counts["held_out_texts"]:
            raise ValueError(
                f"all texts in {self.data} are held out, so there is nothing to learn from; train"
                " on data made without --only-held-out, or with more --tokens"
            )

    def _require_prompts(self) -> None:
        """Refuse to learn from prompts where the data tell distributions of answers alone."""
        tells_answers = any(shard.has_tops for shard in self.dataset.shards)
        if tells_answers and getattr(self.recipe, "prompts", False):
            raise ValueError(
                f"the data in {self.data} know what the target says at answers alone; leave out"
                " --prompts, or make data with --states stored"
            )

    def plan(self, draft_tokens: Int[Tensor, " draft_vocab"]) -> TrainingPlan:
        """Plan this training by a product that is timed now."""
        target, settings = self.target(draft_tokens), self.settings
        head = self.recipe.build(target)
        recomputes = self.manifest.options.states == "recomputed"
        runs = recomputes + (layers_of(self.recipe) is None)
        sizes = target.sizes
        layer = 3 * sizes.hidden * sizes.intermediate_size
        layer += 2 * sizes.hidden * (sizes.heads + sizes.num_kv_heads) * sizes.head_dim
        rate = tokens_per_second(
            self.recipe,
            head,
            target,
            runs * target.layers * layer,
            settings.precision == "bfloat16",
        )
        return TrainingPlan(
            self.dataset.texts("train").tokens,
            self.dataset.coverage(draft_tokens, "train"),
            recomputes,
            rate,
            planned_tokens(settings, rate),
            bytes_on_disk(head, settings),
        )

    def _trainer(
        self,
        start: TrainedHead | None,
        target: TargetWeights,
        train: RowPacking,
        say: Callable[[str], None],
    ) -> Trainer:
        settings = self.settings
        torch.manual_seed(settings.seed)  # of weights that the start lacks
        return Trainer(
            self.recipe,
            target,
            train.with_rows(settings.rows, settings.seed),
            self.packing("held-out").with_rows(settings.rows, None),
            settings,
            self.folder,
            self._going_on(start, target),
            self.resume and self._begun,
            say,
            self._inputs(start, target.draft_tokens),
        )

    def _going_on(self, start: TrainedHead | None, target: TargetWeights) -> nn.Module | None:
        """The drafter to start from, with its weights; None builds a new one."""
        if start is None or self.start is None:
            return None
        return going_on(self.recipe, start, self.start, target)

    def _inputs(self, start: TrainedHead | None, tokens: Tensor) -> dict[str, str]:
        """Digests of what a resumed training must find as it was."""
        manifest = self.manifest
        target = {**asdict(manifest.target), "name": ""}  # wherever it lies
        # a training that stores its head where it started from replaces that
        began = None if self._is_in_place else start
        return {
            "target": _digest(target),
            "data": f"of digest {manifest.digest[:12]}",
            "draft vocabulary": _digest(tokens.tolist()),
            "--from": "no head" if began is None else f"a head of digest {began.digest[:12]}",
        }

    def _chosen(self, target: TargetWeights) -> RowPacking:
        """The training texts, or the flattest of them, with all of their prompts where these
        teach.
        """
        learns_prompts = getattr(self.recipe, "prompts", False)
        packing = replace(self.packing("train"), prompts=learns_prompts)
        if self.settings.flattest >= 1:
            return packing
        share = self.settings.flattest
        return replace(packing, only=flattest(packing.texts, packing.final, target, share))

    def packing(self, split: Split) -> RowPacking:
        """The texts of a part of the data in rows, with the states that the recipe reads."""
        layers = self.loaded.model.layers
        places, (final,) = self._places(self.recipe.reads(layers)), self._places((layers,))
        return RowPacking(self.dataset.texts(split), places, final, self.settings.places)

    def target(self, draft_tokens: Int[Tensor, " draft_vocab"]) -> TargetWeights:
        """Facts about the target, for drafts of these tokens."""
        name = self.model or self.manifest.target.name
        return target_weights(self.loaded.model, name, draft_tokens, layers_of(self.recipe))

    def _places(self, reads: tuple[int, ...]) -> tuple[int, ...]:
        """Indices of these layers among those whose states the data hold."""
        known = self.dataset.layers
        missing = sorted(set(reads) - set(known))
        if missing:
            raise ValueError(
                f"{self.recipe.name} reads layers {_listed(reads)}, but the data in {self.data}"
                f" hold {_listed(known)}; make data with --layers"
                f" {','.join(map(str, sorted({*reads, *known})))}"
            )
        return tuple(known.index(layer) for layer in reads)

    def _start(self) -> TrainedHead | None:
        """The drafter to start from; its target may have been tuned since.

        Raises:
            ValueError: for a drafter of a model of another size.
        """
        if self.start is None:
            if needed := getattr(self.recipe, "needs_start", None):
                raise ValueError(f"{self.recipe.name} goes on from {needed}; name it with --from")
            return None
        start = folders.load(self.start)
        start.target.require_model(self.loaded.model, self.target_name, weights=False)
        return start

    def _is_of(self, start: TrainedHead) -> bool:
        """True for a drafter of this very target."""
        try:
            start.target.require_model(self.loaded.model)
        except ValueError:
            return False
        return True

    def _draft_tokens(self, start: TrainedHead | None) -> Int[Tensor, " draft_vocab"]:
        if start is not None and self.draft_vocabulary is None:
            return as_tensor(start.draft_tokens)
        # no weight belongs to a token of it
        return self.dataset.draft_vocabulary(self.draft_vocabulary or DRAFT_VOCABULARY)

    def _store(self, outcome: Outcome, tokens: Tensor) -> None:
        from accelerate import PartialState

        if PartialState().is_main_process:
            model, name = self.loaded.model, self.target_name
            trained = TrainedHead.of(outcome.head.cpu(), tokens, model, name)
            folders.save(self.output, trained, self._card(outcome, tokens))

    def _card(self, outcome: Outcome, tokens: Tensor) -> str:
        """Model card of the folder."""
        sources = self.manifest.sources.items()
        return "\n".join(
            [
                f"# A drafter for {self.target_name}: {self.recipe.name}",
                "",
                f"Recipe: {self.recipe.source}; {_told(_values(self.recipe))}.",
                f"Trained with: `{self.command}`" if self.command else "",
                f"Started from {self.start}." if self.start else "",
                f"Seed {self.settings.seed}; {outcome.step} steps, {outcome.tokens:,} tokens in"
                f" {outcome.seconds / 60:.0f} minutes"
                f" ({outcome.tokens / max(outcome.seconds, 1e-9):,.0f} tokens/s);"
                f" ended: {outcome.reason}.",
                "",
                "Held-out text, by what the target computed of it:",
                *(f"- {name}: {value:.4g}" for name, value in outcome.figures.items()),
                f"- coverage: {self.dataset.coverage(tokens, 'held-out'):.4g}",
                "",
                f"Data, of digest {self.manifest.digest[:12]}: the target's own answers to prompts"
                " from",
                *(f"- {name}: {_told(facts)}" for name, facts in sources),
            ]
        )


def _values(recipe: DrafterRecipe) -> dict[str, Any]:
    return asdict(recipe)  # type: ignore[call-overload]


def _digest(value: object) -> str:
    return f"of digest {sha256(json.dumps(value).encode()).hexdigest()[:12]}"


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _listed(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
