"""Rules that say which places are fixed now, one file each."""

from draftwood_diffusion.rules.ccd import Ccd
from draftwood_diffusion.rules.ccd_agreement import CcdAgreement
from draftwood_diffusion.rules.entropy import LittleEntropy
from draftwood_diffusion.rules.factor import Factor
from draftwood_diffusion.rules.learned import Learned
from draftwood_diffusion.rules.local_leap import LocalLeap
from draftwood_diffusion.rules.longest_prefix import LongestPrefix
from draftwood_diffusion.rules.one_by_one import (
    ByConfidence,
    ByEntropy,
    ByMargin,
    InRandomOrder,
    LeftToRight,
)
from draftwood_diffusion.rules.oracle import KnownText
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.rules.threshold import Threshold
from draftwood_diffusion.rules.top_k import TopK

RULES: dict[str, type[UnmaskingRule]] = {
    each.name: each
    for each in (
        *(ByConfidence, ByMargin, ByEntropy, LeftToRight, InRandomOrder),
        *(TopK, Threshold, Factor, LocalLeap, Ccd, CcdAgreement),
        *(Learned, LittleEntropy, LongestPrefix, KnownText),
    )
}
"""Rules by name, one by one first."""
