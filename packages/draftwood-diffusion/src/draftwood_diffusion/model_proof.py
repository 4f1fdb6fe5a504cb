"""Checks of masked diffusion on a loaded model: states looked ahead leave its texts alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.engine import Options
from draftwood.sampling import Sampling
from draftwood.testing.promises import CheckResult, ModelCheck
from draftwood.text.prompts import encode_text
from draftwood_diffusion.lookahead import StepsAhead
from draftwood_diffusion.loop import written
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.proof import AHEAD, Comparison, Stale, places
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.unmasking import Unmasking

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

FIRST, BEGINNING = "Once", 8
"""Text before the beginnings of prompts, and their tokens behind it."""
STALE = Stale(4)
Asked = tuple[MaskedModel, list[int], Options]


def fills_masks(lm: "LanguageModel") -> bool:
    """True for a model whose folder calls it a masked-diffusion model."""
    folder = lm.calibration.folder
    return folder is not None and settings_of(Path(folder)) is not None


def cases(lm: "LanguageModel", texts: int, longest: int) -> Iterator[Asked]:
    """A text behind each of so many prompts, greedily and drawn, in blocks of each length up to the
    model's own; prompts are texts that the model begins.
    """
    masked, first = masked_model(lm, {}), encode_text(lm.tokenizer, FIRST)
    prompts = list[list[int]]()
    for seed in range(texts):
        asked = Options(Sampling(1.0), BEGINNING, seed=seed)
        prompts.append([*first, *written(masked, first, asked, Unmasking()).tokens])
    lengths = range(1, masked.settings.block_length + 1)
    for length, temperature, seed in product(lengths, (0.0, 1.0), range(texts)):
        settings = replace(masked.settings, block_length=length)
        asked = Options(Sampling(temperature), longest, frozenset(lm.end_tokens), seed)
        yield replace(masked, settings=settings), prompts[seed], asked


def compared(found: Iterator[Asked], lookaheads: Sequence[StepsAhead]) -> Comparison:
    """Write texts one by one with each lookahead, and without."""
    total = Comparison()
    for asked in found:
        one = written(*asked, Unmasking())
        for each in lookaheads:
            other = written(*asked, Unmasking(lookahead=each))
            differs = places(one) != places(other) or one.tokens != other.tokens
            total += Comparison(1, int(differs), one.runs, one.runs - other.runs)
    return total


def _check_lookahead(lm: "LanguageModel", texts: int, longest: int) -> CheckResult:
    found = compared(cases(lm, texts, longest), AHEAD)
    return CheckResult("identity", SAME, not found.changed, found.told)


def _check_stale(lm: "LanguageModel", texts: int, longest: int) -> CheckResult:
    del texts  # one prompt is enough to catch it
    found = compared(cases(lm, 1, longest), [STALE])
    return CheckResult("control", CAUGHT, found.changed > 0, found.told_of_control)


SAME = "freedave over one-by-one, the model"
CAUGHT = "freedave, compared with a stale pass, the model"
CHECKS = {
    SAME: ModelCheck(fills_masks, _check_lookahead),
    CAUGHT: ModelCheck(fills_masks, _check_stale),
}
"""By what each checks."""
