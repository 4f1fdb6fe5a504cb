"""SDAR (Cheng et al. 2025, arXiv:2510.06303): a Qwen3 that fills blocks, a mask in its own row."""

from draftwood_diffusion.layouts.layout import FolderLayout

SDAR = FolderLayout(
    model_type="sdar",
    decoder="qwen3",
    mask_token=151669,
    block_length=4,
    shifted=False,
    bidirectional=False,
)
