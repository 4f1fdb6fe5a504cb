"""Methods that copy from the text."""

from draftwood.drafters import PromptLookup, SuffixDecoding
from draftwood.methods.composition import MethodSpec
from draftwood.verifiers import Match

RECIPES = (
    MethodSpec(
        "lookup",
        "copies what followed the newest tokens before",
        "Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
        PromptLookup,
        None,
        Match(),
    ),
    MethodSpec(
        "suffix",
        "copies what followed the longest match, in a tree as large as pays",
        "Oliaro et al. 2024, arXiv:2411.04975; Hu et al. 2024, arXiv:2411.10666",
        SuffixDecoding,
        None,
        Match(),
    ),
)
