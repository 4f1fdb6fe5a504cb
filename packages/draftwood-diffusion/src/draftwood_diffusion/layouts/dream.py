"""Dream (Ye et al. 2025, arXiv:2508.15487): a Qwen2 whose rows see all, shifted."""

from draftwood_diffusion.layouts.layout import FolderLayout

DREAM = FolderLayout(
    model_type="Dream",
    decoder="qwen2",
    mask_token=151666,
    block_length=32,
    shifted=True,
    bidirectional=True,
)
