"""Methods that draft with a trained head."""

from draftwood.drafters import CtcDrafter, CtcPaper, CtcRaw, Eagle, Hydra, Lm, Medusa, Mtp
from draftwood.drafters.draft_vocabulary import small_tree
from draftwood.methods.composition import MethodSpec
from draftwood.shapes import BestFirst, Widths
from draftwood.verifiers import Match, Rejection

RECIPES = (
    MethodSpec(
        "eagle",
        "the likeliest nodes of a tree that a trained head drafts from the model's hidden states",
        "Li et al. 2025, arXiv:2503.01840; Li et al. 2024, arXiv:2406.16858",
        Eagle,
        BestFirst(depth=5, width=3, size=4, floor=0.15),
        Match(),
    ),
    MethodSpec(
        "eagle-rsd",
        "a tree drawn from the same head without replacement, recursive rejection",
        "Li et al. 2025, arXiv:2503.01840; Jeon et al. 2024, arXiv:2402.14160",
        Eagle,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "mtp",
        "the likeliest nodes that the model's own multi-token prediction layer drafts",
        "DeepSeek-AI 2024, arXiv:2412.19437",
        Mtp,
        BestFirst(depth=5, width=3, size=4, floor=0.15),
        Match(),
    ),
    MethodSpec(
        "mtp-rsd",
        "the same layer, drawn without replacement, recursive rejection",
        "DeepSeek-AI 2024, arXiv:2412.19437; Jeon et al. 2024, arXiv:2402.14160",
        Mtp,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "medusa",
        "the likeliest nodes of trained heads, one for each of the next places",
        "after Cai et al. 2024, arXiv:2401.10774",
        Medusa,
        small_tree(),
        Match(),
    ),
    MethodSpec(
        "hydra",
        "the same, each head seeing what was drafted before it",
        "after Ankner et al. 2024, arXiv:2402.05109",
        Hydra,
        small_tree(),
        Match(),
    ),
    MethodSpec(
        "ctc",
        "the likeliest texts of frames that a trained head drafts side by side",
        "after Wen et al. 2024, arXiv:2412.00061",
        CtcDrafter,
        None,
        Match(),
    ),
    MethodSpec(
        "ctc-paper",
        "the likeliest raw paths through the same frames, collapsed as the paper has it",
        "Wen et al. 2024, arXiv:2412.00061",
        CtcPaper,
        None,
        Match(),
    ),
    MethodSpec(
        "ctc-raw",
        "the same frames without merging and blanks, frame by frame",
        "after Wen et al. 2024, arXiv:2412.00061",
        CtcRaw,
        None,
        Match(),
    ),
    MethodSpec(
        "ctc-rsd",
        "a tree drawn from the same frames without replacement, recursive rejection",
        "after Wen et al. 2024, arXiv:2412.00061; Jeon et al. 2024, arXiv:2402.14160",
        CtcDrafter,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "lm",
        "the likeliest nodes of a tree that a distilled draft LM writes",
        "Zhou et al. 2024, arXiv:2310.08461; Li et al. 2024, arXiv:2406.16858",
        Lm,
        small_tree(),
        Match(),
    ),
    MethodSpec(
        "lm-rsd",
        "a tree drawn from the same LM without replacement, recursive rejection",
        "Zhou et al. 2024, arXiv:2310.08461; Jeon et al. 2024, arXiv:2402.14160",
        Lm,
        Widths((2, 1, 1)),
        Rejection(),
    ),
)
