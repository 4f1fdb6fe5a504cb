"""Fast-dLLM v2 (Wu et al. 2025, arXiv:2509.26328): a Qwen2 that fills blocks, shifted."""

from draftwood_diffusion.layouts.layout import FolderLayout

FAST_DLLM = FolderLayout(
    model_type="Fast_dLLM_Qwen",
    decoder="qwen2",
    mask_token=151665,
    block_length=32,
    shifted=True,
    bidirectional=False,
    block_keys=("bd_size",),
)
