"""Find the part of draftwood that changes a text: switch parts off one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood import methods
from draftwood.arrays import Float
from draftwood.drafters import MultiSource
from draftwood.engine.method import Method
from draftwood.models.cached import CachedModel
from draftwood.models.decoder_model import DecoderModel
from draftwood.models.model import Model, extend_in_chunks
from draftwood.models.native import NativeModel
from draftwood.models.shared import SharedPasses
from draftwood.native.library import available, library
from draftwood.optional import backend
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.testing.promises import Divergence, first_divergence

if TYPE_CHECKING:
    from draftwood.backend import Backend
    from draftwood.text.language_model import LanguageModel

AUTOMATIC, NEVER = -1, 0
"""When the library takes AMX tiles."""

INSTEAD = {
    "native steps": "drafting and verifying in Python, forward passes as before",
    "native heads": "heads in PyTorch",
    "trained head": "the other sources of auto",
    "drafting": "plain decoding",
    "AMX tiles": "vector instructions",
    "packing": "weights and cache in float32",
    "native attention": "layers in PyTorch",
    "own layers": "the model's own code in Transformers",
}
"""Stand-ins for the parts, in the order in which they are switched off."""


@dataclass(frozen=True)
class SwitchResult:
    """Effect of switching one part off, after all parts before it were.

    Attributes:
        name: of the part; one of ``INSTEAD``.
        changed: whether a token changed; None where there was nothing to switch off.
        detail: the change in words, or why there was none.
        divergence: the first token that changed. ``plain_token`` is the one without the part, and
            the margin is that of the model without it.
        logits_apart: distance of the logits there with the part from those without it, over the
            size of these. It is 0 where a model's own logits are verified wrongly, a few hundredths
            where numbers are rounded, and more for a fault.
    """

    name: str
    changed: bool | None
    detail: str = ""
    divergence: Divergence | None = None
    logits_apart: float | None = None

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "instead": INSTEAD[self.name]}


class NothingToSwitchError(ValueError):
    """The model or the method does not have this part."""


def bisect(
    lm: "LanguageModel",
    prompt: Sequence[int],
    max_new_tokens: int,
    floats: Callable[[], Any] | None = None,
) -> Iterator[SwitchResult]:
    """Write a greedy text again and again, each time with one part less.

    The last text is that of the weights in float32 in the code of Transformers. Rounding, as that
    of rows to 8 bits, may change a token without a fault: see ``SwitchResult.logits_apart``.

    Args:
        floats: loads the same weights in float32, as a model of Transformers; None loads them by
            the model's name, where they have no adapter. See ``in_float32``.
    """
    text, road = _written(lm, prompt, max_new_tokens), _Road(lm, floats)
    with _tiles_as_before():
        for name in INSTEAD:
            before = road.lm.model, text
            try:
                shorter = road.without(name)
            except (ValueError, MemoryError) as error:
                yield SwitchResult(name, None, str(error))
                continue
            text = _written(shorter, prompt, max_new_tokens)
            yield _result(name, prompt, before, (shorter.model, text))


def in_float32(lm: "LanguageModel", adapter: str | None = None) -> Any:
    """Load a model's weights in float32, as a model of Transformers, by its name.

    Args:
        adapter: that is added to them, by its folder or Hugging Face id.
    """
    from draftwood.loading import hub
    from draftwood.loading.adapters import LoraAdapter

    changes = None if adapter is None else LoraAdapter.read(adapter)
    folder, place = hub.folder_of(lm.name, "float32"), hub.device_of(str(lm.model.device))
    return hub.read_folder(lm.name, folder, "float32", place, adapter=changes).model


def first_changed(results: Sequence[SwitchResult]) -> str | None:
    """Name the first part without which the text is another one; None if there is none."""
    return next((each.name for each in results if each.changed), None)


class _Road:
    """A model and a method with fewer and fewer parts."""

    def __init__(self, lm: "LanguageModel", floats: Callable[[], Any] | None) -> None:
        self.lm, self.load, self.loaded = lm, floats or self._by_name, None
        self.is_native = isinstance(lm.model, NativeModel)
        self.is_adapted = getattr(lm.model, "adapter", None) is not None

    def without(self, name: str) -> "LanguageModel":
        """Switch a part off, for good; NothingToSwitchError where there is none."""
        switch: Callable[[], tuple[Model, Method]] = getattr(self, f"_no_{name.replace(' ', '_')}")
        model, method = switch()
        lm = self.lm
        self.lm = type(lm)(model, lm.tokenizer, method, lm.name, lm.calibration, lm.prior)
        return self.lm

    def _no_native_steps(self) -> tuple[Model, Method]:
        model = self.lm.model
        if not isinstance(model, NativeModel):
            raise NothingToSwitchError("the model does not run natively")
        return SharedPasses(model), self.lm.method

    def _no_native_heads(self) -> tuple[Model, Method]:
        method = self.lm.method
        if getattr(method.drafter, "native", None) is None:
            raise NothingToSwitchError(f"{method.name} drafts with no head that PyTorch runs too")
        drafter = copy(method.drafter)
        object.__setattr__(drafter, "native", None)
        return self.lm.model, replace(method, drafter=drafter)

    def _no_trained_head(self) -> tuple[Model, Method]:
        method = self.lm.method
        drafter = method.drafter
        sources = drafter.sources if isinstance(drafter, MultiSource) else ()
        others = tuple(each for each in sources if not isinstance(each, TrainedHeadSource))
        if others == sources or not isinstance(drafter, MultiSource):
            raise NothingToSwitchError(f"{method.name} asks no trained head in C++")
        return self.lm.model, replace(method, drafter=replace(drafter, sources=others))

    def _no_drafting(self) -> tuple[Model, Method]:
        if self.lm.method.name == "plain":
            raise NothingToSwitchError("plain drafts nothing")
        return self.lm.model, methods.build("plain", self.lm.model)

    def _no_AMX_tiles(self) -> tuple[Model, Method]:  # noqa: N802
        if not self.is_native or not library().draftwood_has_tiles():
            raise NothingToSwitchError("no products run on AMX tiles here")
        library().draftwood_force_tiles(NEVER)
        return self.lm.model, self.lm.method

    def _no_packing(self) -> tuple[Model, Method]:
        if not self.is_native:
            raise NothingToSwitchError("the model does not run natively")
        return self._plainly(lambda hf_model: SharedPasses(NativeModel(hf_model)))  # no steps

    def _no_native_attention(self) -> tuple[Model, Method]:
        if not self.is_native:
            raise NothingToSwitchError("the model does not run natively")
        return self._plainly(_runner().lean_model)

    def _no_own_layers(self) -> tuple[Model, Method]:
        runner, model = _runner(), self.lm.model
        if isinstance(model, CachedModel) and not isinstance(model, (DecoderModel, SharedPasses)):
            raise NothingToSwitchError("the model runs in its own code already")
        return self._plainly(runner.general_model)

    def _plainly(self, run: Callable[[Any], Model]) -> tuple[Model, Method]:
        """Run the weights in float32 in another way."""
        _runner()
        self.loaded = self.loaded or self.load()
        model = run(self.loaded)
        return model, methods.build("plain", model)

    def _by_name(self) -> Any:
        if self.is_adapted:
            raise NothingToSwitchError(
                "the model's name tells nothing of its adapter; give floats that load it, as"
                " in_float32 does"
            )
        return in_float32(self.lm)


def _runner() -> "Backend":
    try:
        return backend("running the weights in float32")
    except ImportError as error:
        raise NothingToSwitchError(str(error)) from None


@contextmanager
def _tiles_as_before() -> Iterator[None]:
    """Let the library choose again at the end."""
    try:
        yield
    finally:
        if available():
            library().draftwood_force_tiles(AUTOMATIC)


def _written(lm: "LanguageModel", prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    return lm.generate(list(prompt), max_new_tokens=max_new_tokens).token_ids


def _result(
    name: str,
    prompt: Sequence[int],
    before: tuple[Model, list[int]],
    after: tuple[Model, list[int]],
) -> SwitchResult:
    (model, text), (other, changed) = after, before
    found = first_divergence(model, prompt, text, changed)
    if found is None:
        return SwitchResult(name, False, f"the same {len(text)} tokens with {INSTEAD[name]}")
    same = [*prompt, *text[: found.position]]
    right, wrong = _logits_after(model, same), _logits_after(other, same)
    apart = float(np.linalg.norm(wrong - right) / np.linalg.norm(right))
    detail = (
        f"token {found.position}: {found.other_token} with it, {found.plain_token} without; the two"
        f" top logits are {found.margin:.3g} apart there, and all of them differ by {apart:.1%}"
    )
    return SwitchResult(name, True, detail, found, apart)


def _logits_after(model: Model, tokens: Sequence[int]) -> Float[np.ndarray, " vocab"]:
    """Centre the logits after a text, as a constant changes none of their probabilities."""
    with closing(model.start()) as session:
        logits = extend_in_chunks(session, tokens).rows[-1]
    return logits - logits.mean()
