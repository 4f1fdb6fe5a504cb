"""Masked diffusion: blocks of tokens filled in a few passes, by rules with a known price."""
