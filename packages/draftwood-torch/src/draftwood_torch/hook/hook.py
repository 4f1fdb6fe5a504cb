"""The custom loop that ``generate`` calls."""

import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

from draftwood import methods
from draftwood.costs.calibration import Calibration
from draftwood.drafters import Nothing
from draftwood.drafters.resources import Later
from draftwood.engine.method import Method
from draftwood.heads import folder
from draftwood.heads.trained import TrainedHead
from draftwood.methods.drafts import Drafts
from draftwood.stats import Stats
from draftwood.validation import require_kind
from draftwood_torch.hook.call import Call
from draftwood_torch.hook.caller import arguments_of_generate, give_back_the_tokenizer
from draftwood_torch.hook.drafted import decode_drafted
from draftwood_torch.hook.options import refuse, why_without_drafts, why_without_trees
from draftwood_torch.hook.probe import takes_batches
from draftwood_torch.hook.processors import require_stateless
from draftwood_torch.hook.stepwise import decode_stepwise
from draftwood_torch.models.pool import CachePool
from draftwood_torch.models.transformers import TransformersModel


def custom_generate(
    method: str | methods.MethodSpec | Method | None = None,
    draft_model: PreTrainedModel | str | Path | TrainedHead | None = None,
    report: Callable[[Stats], None] | None = None,
    streamer: BaseStreamer | None = None,
    stateless: Sequence[type] = (),
    drafter: str | Path | TrainedHead | None = None,
) -> "Hook":
    """A decoding loop for ``model.generate``, which takes it as ``custom_generate``.

    For instance ``model.generate(**inputs,
    custom_generate=draftwood.custom_generate("auto"))``.

    Transformers prepares everything as usual and runs the prompt; texts, scores and caches are what
    it would give. With sampling, ``torch.manual_seed`` before the call makes it reproducible.
    docs/transformers.md describes every option of ``generate``. A call that drafts might change
    runs without them, with a warning.

    Args:
        method: a name of ``draftwood methods``, a ``MethodSpec``, or a ``Method`` of your own. None
            copies from the text so far, or takes the method that follows from ``draft_model``.
        draft_model: what drafts: a second model, or a trained head: its name or folder, or what
            ``heads.folder.load`` gave.
        report: called with the call's ``Stats`` at its end.
        streamer: gets the prompt, then tokens as they are accepted; the same as ``streamer`` of
            ``generate``, which then takes none.
        stateless: classes of logits processors of your own that keep nothing between calls and read
            of every row nothing but its tokens and scores. Calls with others run without drafts.
        drafter: a trained head; ``draft_model`` takes it now.

    Raises:
        TypeError: for what can be no draft model, for the name of one that is no head, for a report
            that cannot be called, and for what is no list of classes.
        ValueError: for an unknown method, one that lacks a draft model or uses none of what is
            given, a head that is not whole, and processors that keep something between calls; by
            the returned function, for options of ``generate`` that make no sense here.
    """
    if report is not None and not callable(report):
        raise TypeError(f"report must be a function of the call's Stats, got {report!r:.80}")
    trusted = require_stateless(stateless)

    drafts = Drafts.of(draft_model, drafter)
    wanted = "a model of Transformers, or a trained head or its name"
    require_kind("draft_model", drafts.model, torch.nn.Module, wanted)
    head = folder.load(drafts.head) if isinstance(drafts.head, str) else drafts.head
    usual = drafts.method if drafts.head is None else drafts.drafter  # no target is native here
    chosen = method or (usual if drafts.given else "lookup")
    methods.require([chosen], drafts.given)
    drafts.require_for([] if isinstance(chosen, Method) else [methods.spec(chosen)])
    return Hook(chosen, drafts.model, report, streamer, trusted, head)


_OWN = ("_used", "_starting")
"""Attributes that a hook does not share with its copies."""


class Hook:
    """Decoding loop that ``custom_generate`` returns; see there."""

    def __init__(
        self,
        method: str | methods.MethodSpec | Method,
        draft_model: PreTrainedModel | None,
        report: Callable[[Stats], None] | None,
        streamer: BaseStreamer | None,
        stateless: tuple[type, ...],
        head: TrainedHead | None = None,
    ) -> None:
        self.head = head
        self.method, self.draft_model, self.report, self.streamer = (
            method,
            draft_model,
            report,
            streamer,
        )
        self.stateless = stateless
        self._begin()

    def _begin(self) -> None:
        self._used: WeakKeyDictionary[PreTrainedModel, _Used] = WeakKeyDictionary()
        self._starting = threading.Lock()  # two first calls at once would have a cache each

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy in another process; caches stay here."""
        return {name: value for name, value in vars(self).items() if name not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def __signature__(self) -> inspect.Signature:
        """Signature that ``generate`` reads before it picks the arguments for the loop."""
        give_back_the_tokenizer()
        return inspect.signature(self.__call__)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        tokenizer: object = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        asked = arguments_of_generate()
        refuse(
            model,
            generation_config,
            {**asked, "synced_gpus": synced_gpus or asked.get("synced_gpus")},
        )
        streamer = asked.get("streamer")
        if None not in (streamer, self.streamer) and streamer is not self.streamer:
            raise ValueError(
                "generate and custom_generate were given a streamer each; give one streamer, to"
                " either of them"
            )
        reason = why_without_trees(model)
        started = self._start(model) if reason is None else None
        # otherwise generate has given it the prompt
        if streamer is None and self.streamer is not None:
            streamer = self.streamer
            streamer.put(input_ids.cpu())
        seeds = [int(torch.randint(1 << 62, ())) for _ in input_ids]
        call = Call(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            model_kwargs,
            streamer,
            seeds,
        )
        drafts = started is not None and not isinstance(started[1].drafter, Nothing)
        if started is not None and drafts:
            reason = self._why_without_drafts(call, started[0])
        if reason is not None:
            warnings.warn(f"this call of generate runs without drafts: {reason}", stacklevel=4)
        if started is not None and drafts and reason is None:
            output, stats = decode_drafted(call, *started)
        else:
            output, stats = decode_stepwise(call)
        if self.report is not None:
            self.report(stats)
        return output

    def _why_without_drafts(self, call: Call, target: TransformersModel) -> str | None:
        return why_without_drafts(call, target, self.stateless) or _why_not_in_batches(call, target)

    def _start(self, model: PreTrainedModel) -> tuple[TransformersModel, Method]:
        """The model with a cache for trees, and the method.

        The model is wrapped again where it has moved or changed its type.
        """
        with self._starting:
            known = self._used.get(model)
            if known is not None and (known.pool.dtype, known.pool.device) == (
                model.dtype,
                model.device,
            ):
                return TransformersModel(model, known.pool), known.method
            target = TransformersModel(model)
            method = _built(self.method, target, self.draft_model, self.head)
            if not method.verifier.exact_for:
                raise ValueError(
                    f"{method.verifier.name} verification changes what the model would say; use a"
                    " lossless method"
                )
            self._used[model] = _Used(target.pool, method)
            return target, method


@dataclass(frozen=True)
class _Used:
    """Cache and method of a model, kept from call to call.

    It holds no reference to the model, which may be dropped.
    """

    pool: CachePool
    method: Method


def _built(
    method: str | methods.MethodSpec | Method,
    target: TransformersModel,
    draft_model: PreTrainedModel | None,
    head: TrainedHead | None,
) -> Method:
    draft = None if draft_model is None else TransformersModel(draft_model)
    curve = Later(Calibration(target).followed)
    return methods.build(method, target, draft, curve=curve, head=head)


def _why_not_in_batches(call: Call, target: TransformersModel) -> str | None:
    """Reason why this model needs rows one by one; None if it does not.

    ValueError where it cannot run trees at all.
    """
    if takes_batches(target) or len(call.input_ids) == 1:
        return None
    return (
        f"{type(call.model).__name__} gives other logits for trees of several rows than in its own"
        " generate"
    )
