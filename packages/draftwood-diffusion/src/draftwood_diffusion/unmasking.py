"""A method of unmasking: one part for each of the four questions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftwood.engine.method import Promise
from draftwood.methods.knobs import made
from draftwood_diffusion.blocks import BLOCKS, BlockEnds
from draftwood_diffusion.blocks.fixed import FixedBlocks
from draftwood_diffusion.lookahead import LOOKAHEADS, StepsAhead
from draftwood_diffusion.lookahead.none import OneState
from draftwood_diffusion.part import Part
from draftwood_diffusion.reuse import REUSES, Reuse
from draftwood_diffusion.reuse.none import NoReuse
from draftwood_diffusion.revision import REVISIONS, Revision
from draftwood_diffusion.revision.none import KeepAll
from draftwood_diffusion.rules import RULES
from draftwood_diffusion.rules.one_by_one import ByConfidence
from draftwood_diffusion.rules.rule import UnmaskingRule

PARTS: Mapping[str, type[Part]] = {**RULES, **BLOCKS, **LOOKAHEADS, **REVISIONS, **REUSES}
"""Every part by its name."""


@dataclass(frozen=True)
class Unmasking:
    """A rule, blocks, a lookahead, a revision, and what passes keep.

    Attributes:
        rule: says which places are fixed now.
        blocks: say how far a block reaches.
        lookahead: says how many steps are checked ahead.
        revision: says what may change again.
        reuse: says what approximate passes keep.
    """

    rule: UnmaskingRule = field(default_factory=ByConfidence)
    blocks: BlockEnds = field(default_factory=FixedBlocks)
    lookahead: StepsAhead = field(default_factory=OneState)
    revision: Revision = field(default_factory=KeepAll)
    reuse: Reuse = field(default_factory=NoReuse)

    @property
    def promise(self) -> Promise:
        """One place a pass, or a lookahead of it, is the same as one by one; a rule that is told
        the text has another aim; all else trades quality.
        """
        if self.rule.knows_text:
            return "another aim"
        usual = type(self.blocks) is FixedBlocks and type(self.revision) is KeepAll
        usual = usual and not self.reuse.keeps_prefix
        return "same as one by one" if self.rule.is_one_by_one and usual else "trades quality"


def parse(text: str) -> Unmasking:
    """A method as users type it: parts joined by ``+``, each its name and knobs, as in
    ``threshold,tau=0.8+freedave,d=4``. What is not named is one by one, in blocks of the model's
    own length, a state a pass, and nothing changes again.

    Raises:
        ValueError: for an unknown part or knob, two parts for one question, and a value that is no
            number or out of range.
    """
    given = dict[str, Part]()
    for each in text.split("+"):
        name, *knobs = [one.strip() for one in each.split(",")]
        if name not in PARTS:
            raise ValueError(
                f"there is no rule of unmasking {name!r}; there are: {', '.join(PARTS)}"
            )
        pairs = [one.partition("=") for one in knobs]
        told = {knob.strip(): value for knob, _, value in pairs}
        if len(told) < len(pairs):
            raise ValueError(f"a knob of {each.strip()!r} is given twice; give each once")
        part = made(PARTS[name], told)
        question = question_of(part)
        if question in given:
            raise ValueError(
                f"{given[question].name!r} and {name!r} answer the same question ({question}); give"
                " one of them"
            )
        given[question] = part
    return Unmasking(**given)  # type: ignore[arg-type]


def question_of(part: Part) -> str:
    """The question that a part answers, as a field of ``Unmasking``."""
    kinds = {
        "rule": UnmaskingRule,
        "blocks": BlockEnds,
        "lookahead": StepsAhead,
        "revision": Revision,
        "reuse": Reuse,
    }
    return next(name for name, kind in kinds.items() if isinstance(part, kind))


def alone(part: type[Part]) -> Unmasking:
    """The method of this part beside the usual ones."""
    made_part = part()
    return Unmasking(**{question_of(made_part): made_part})  # type: ignore[arg-type]
