"""Acceptance of a drafter: as probes foretell it, and as a trained head has it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads import folder as folders
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.text.language_model import LanguageModel
from draftwood_train.doctor.differences import Drafted
from draftwood_train.doctor.head import head_of
from draftwood_train.inspection.documents import SHORTEST, Document
from draftwood_train.inspection.probe import Classes, Probe, foretold
from draftwood_train.inspection.surplus import AHEAD, SplitReadings

NEW_TOKENS = 64
LEFT_OUT = "none"
MEASURED = 32
"""Documents whose beginnings are continued with a trained head."""


@dataclass(frozen=True)
class Acceptance:
    """Drafts of a chain of three tokens behind the one that the model drew.

    Attributes:
        drafter: that drafts.
        depths: share of right drafts at each depth, of those behind right ones alone.
        overlap: at each depth, of its distribution and the model's at temperature 1; None where it
            was not computed.
        tokens_per_pass: of the model, with chains of three.
    """

    drafter: str
    depths: tuple[float | None, ...]
    overlap: tuple[float, ...] | None
    tokens_per_pass: float

    @classmethod
    def of(
        cls, drafter: str, drafted: Drafted, overlap: tuple[float, ...] | None, passes: int
    ) -> "Acceptance":
        """Sum up counted drafts."""
        depths = tuple(drafted.share(depth) for depth in range(len(AHEAD)))
        return cls(drafter, depths, overlap, 1 + sum(drafted.right) / max(passes, 1))


def expected(
    drafter: str,
    probes: Mapping[int, tuple[Probe, str]],
    parts: SplitReadings,
    classes: Classes,
    laws: Sequence[Float[Tensor, "places classes_but_one"]],
) -> Acceptance:
    """Expect of a drafter to draft the likeliest tokens of probes, all in one pass.

    A draft is right where it is the text's token, as in decoding at the temperature at which the
    model wrote the text. In a text of the user's it is right where it is the user's token.

    Args:
        probes: by the places that they look ahead, each with its rung.
        laws: the model's distribution of the token at each of these places.
    """
    readings, overlaps, guessed = parts.readings[-1], [], []
    for (ahead, (probe, rung)), law in zip(probes.items(), laws, strict=True):
        own = foretold(probe, parts.rows(rung, classes, ahead)[-1])
        overlaps.append(float(torch.minimum(own, law).sum(-1).mean()))
        guessed.append(classes.tokens[own.argmax(-1)] == readings.ahead[:, ahead - 1])
    drafted = Drafted()
    for right in torch.stack(guessed, 1).long().cumprod(1).sum(1).tolist():
        drafted.add(right, len(guessed))
    return Acceptance.of(drafter, drafted, tuple(overlaps), len(readings))


@torch.no_grad()
def laws(
    model: Model, documents: Sequence[Document], tokens: Int[Tensor, " some"], report: Callable
) -> list[Float[Tensor, "places some"]]:
    """The model's own probabilities of some tokens 2, 3 and 4 ahead, each after the true tokens."""
    found: list[list[Tensor]] = [[] for _ in AHEAD]
    for each in documents:
        with closing(model.start()) as session:
            logits = session.extend(each.tokens, keep="all").logits.float().cpu()
        for own, ahead in zip(found, AHEAD, strict=True):
            rows = logits[each.first + ahead - 1 :][: each.places]
            own.append((rows[:, tokens] - rows.logsumexp(-1, keepdim=True)).exp())
        report()
    return [torch.cat(rows) for rows in found]


def eagle_head(lm: LanguageModel, given: str | None) -> tuple[str, TrainedHead] | None:
    """The EAGLE head that is given, or the one that comes with draftwood for a model.

    None where there is none, and for ``none``.

    Raises:
        ValueError: for a head that is given and of another model or kind.
    """
    if given == LEFT_OUT:
        return None
    if given is not None:
        trained = folders.load(given)
        head_of(trained, "inspect")
        trained.target.require_model(lm.model, lm.name)
        return given, trained
    for name in folders.shipped():
        trained = folders.load(name)
        try:
            trained.target.require_model(lm.model, lm.name)
        except ValueError:
            continue
        if trained.config.kind == "eagle":
            return name, trained
    return None


def measured(
    lm: LanguageModel,
    name: str,
    head: TrainedHead,
    documents: Sequence[Document],
    temperature: float,
    seed: int,
    report: Callable[[], None],
) -> Acceptance:
    """Decode behind the prompts of documents with a head that drafts chains of three tokens."""
    drafting = lm.with_method("eagle", draft_model=head, tree=str(len(AHEAD)), measure=False)
    drafted, passes = Drafted(), 0
    for number, each in enumerate(documents[:MEASURED]):
        prompt = list(each.tokens[: max(each.first + 1, SHORTEST)])
        wanted = {"max_new_tokens": NEW_TOKENS, "temperature": temperature}
        stream = drafting.stream(prompt, seed=seed + number, **wanted)
        for _ in stream:
            pass
        for step in stream.steps:
            if step.tree is not None and len(step.tree) > len(AHEAD):
                drafted.add(step.accepted, len(AHEAD))
                passes += 1
        report()
    return Acceptance.of(name, drafted, None, passes)
