"""Checks that drafts leave pictures alone, and that they would notice if drafts did not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from draftwood.drafters import DraftRequest, JacobiSampled, RacedJacobi
from draftwood.drafters.drafter import DraftSession
from draftwood.drafters.jacobi_sampled import RacedSession
from draftwood.engine import Method
from draftwood.sampling import Context, Sampling
from draftwood.testing import TableModel
from draftwood.testing.promises import Check, CheckResult
from draftwood.testing.windows import WRONG_WINDOWS, WindowCase
from draftwood.tree import DraftTree
from draftwood.verifiers import Grouped, Match
from draftwood_images.drawing import DrawingRule, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model, shipped_models
from draftwood_images.layout import PictureLayout
from draftwood_images.methods import WindowKnobs, picture_method
from draftwood_images.small import small_picture_model
from draftwood_images.starts import STARTS, PictureStart, Start

TINY = PictureLayout(2, 2, 4, 3, (0, 1, 2))
"""Two rows of two codes of three; token 3 opens them."""
PROMPT = [3]
LAW, RACED, GROUPED = "sjd on pictures", "raced-jacobi on pictures", "gsd with groups of one"
TOLERANCE, LEAST = 1e-5, 0.004
"""Total variation that rounding makes at most, and that each wrong variant makes at least."""
DRAWN = 2
KINDS = ((0.0, False), (0.0, True), (1.0, False), (1.0, True))
"""Temperatures at which pictures are compared, each without guidance and with it."""
WHOLE = WindowKnobs(window=5, whole=True)


@dataclass(frozen=True)
class SpendingRaces(RacedJacobi):
    """Wrong: each pass of drafts uses up a number that the model's own draws need."""

    name: ClassVar[str] = "spending-races"

    def start(self, request: DraftRequest) -> DraftSession:
        return _SpendingSession(self, request)


class _SpendingSession(RacedSession):
    def propose(self, root: int, context: Context) -> DraftTree:
        self.rng.draw(np.full(2, 0.5, np.float32))
        return super().propose(root, context)


def law_is_off(start: Start, window: int, drafter: type[JacobiSampled] = JacobiSampled) -> float:
    """Total variation between drafted pictures of 2 x 2 codes of 3, three of them drawn, and the
    model's, by every random choice.
    """
    logits = 1.6 * np.random.default_rng(5).normal(size=(4, 4, 4)).astype(np.float32)
    sampling = Sampling(1.0, top_k=2, logit_bias=TINY.bias)
    case = WindowCase(TableModel(logits), PROMPT, sampling)
    return case.off(drafter(window, PictureStart(TINY, start)))


def check_law(start: Start, window: int) -> CheckResult:
    """Enumerate drafted pictures for one start and window."""
    found = law_is_off(start, window)
    told = f"{found:.1e} off, enumerated"
    return CheckResult("law", f"{LAW}: {start}, {window}", found < TOLERANCE, told)


def check_law_control(wrong: str) -> CheckResult:
    """Enumerate pictures of a drafter that is known to be wrong."""
    found = law_is_off("left", 2, WRONG_WINDOWS[wrong])
    told = f"{'caught, as it must be' if found > LEAST else 'not caught'}: {found:.3f} off"
    return CheckResult("control", f"{LAW}: {wrong}", found > LEAST, told)


def models(dtype: Literal["float32", "int8"]) -> list[tuple[DrawingModel, str]]:
    """A random model and the built-in ones, each with a name that it knows."""
    small = DrawingModel.of("random model", small_picture_model(dtype))
    found = [(small, "red apple")]
    for name in shipped_models():
        drawing = DrawingModel.of(name, load_picture_model(name, dtype))
        found.append((drawing, ""))
    return found


def same_pictures(
    drawing: DrawingModel,
    name: str,
    wrong: bool = False,
    pictures: int = DRAWN,
    kinds: Sequence[tuple[float, bool]] = KINDS,
) -> tuple[int, int]:
    """Count pictures, and those of raced-jacobi that are plain drawing's code by code.

    Args:
        wrong: draws by the rule that uses numbers up.
        pictures: of each kind.
        kinds: temperatures, each with guidance or without.
    """
    made = same = 0
    for temperature, is_guided in kinds:
        scale = max(2.0, drawing.guidance) if is_guided else 1.0
        easel = Easel(drawing, name, DrawingRule(temperature, drawing.top_k, scale))
        raced = picture_method("raced-jacobi", easel, WHOLE)
        if wrong:
            raced = Method(SpendingRaces(5, PictureStart(drawing.layout)), Match())
        pair = [easel.draw(each, range(pictures)) for each in (_plain(easel), raced)]
        for one, other in zip(*pair, strict=True):
            made, same = made + 1, same + bool((one.codes == other.codes).all())
    return made, same


def _plain(easel: Easel) -> Method:
    return picture_method("plain", easel)


def check_raced(dtype: Literal["float32", "int8"]) -> CheckResult:
    """Compare raced-jacobi's pictures with plain drawing's, on all models there are."""
    counts = [same_pictures(drawing, name) for drawing, name in models(dtype)]
    made, same = (sum(each) for each in zip(*counts, strict=True))
    told = f"{same} of {made} pictures the same as drawn plainly"
    return CheckResult("identity", f"{RACED}, {dtype}", made == same, told)


def check_raced_control() -> CheckResult:
    """Let drafts use up the numbers of the seed, which must change pictures."""
    drawing = DrawingModel.of("random model", small_picture_model())
    made, same = same_pictures(drawing, "red apple", wrong=True)
    told = "caught, as it must be" if same < made else "not caught"
    return CheckResult("control", f"{RACED}: numbers used up", same < made, told)


def same_draws(group: int) -> bool:
    """True if gsd with groups of so many draws what sjd draws, pass by pass."""
    drawing = DrawingModel.of("random model", small_picture_model())
    easel = Easel(drawing, "green pear", DrawingRule(1.0, 5, 2.0))
    sjd = picture_method("sjd", easel, WHOLE)
    gsd = picture_method("gsd", easel, replace(WHOLE, group=group, delta=1.0))
    assert isinstance(gsd.verifier, Grouped)
    pairs = zip(easel.draw(sjd, range(4)), easel.draw(gsd, range(4)), strict=True)
    return all([a.tokens for a in x.steps] == [b.tokens for b in y.steps] for x, y in pairs)


def check_grouped() -> CheckResult:
    """Compare gsd with groups of one with sjd, pass by pass."""
    same = same_draws(1)
    return CheckResult("identity", GROUPED, same, "sjd's draws" if same else "other draws")


def check_grouped_control() -> CheckResult:
    """Compare larger groups likewise, which must differ."""
    caught = not same_draws(5)
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", "gsd with groups of five", caught, told)


CHECKS: dict[str, Check] = {
    **{f"{LAW}: {each}, {n}": partial(check_law, each, n) for each in STARTS for n in (2, 3)},
    **{f"{LAW}: {wrong}": partial(check_law_control, wrong) for wrong in WRONG_WINDOWS},
    f"{RACED}, float32": partial(check_raced, "float32"),
    f"{RACED}, int8": partial(check_raced, "int8"),
    f"{RACED}: numbers used up": check_raced_control,
    GROUPED: check_grouped,
    "gsd with groups of five": check_grouped_control,
}
"""By what each checks."""
