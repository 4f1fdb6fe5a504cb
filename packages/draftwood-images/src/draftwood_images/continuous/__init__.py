"""Pictures whose tokens are vectors: a causal transformer, a diffusion head below each token.

A smaller model drafts several tokens, and the larger one looks at them in one pass.

    draftwood train continuous my-digits --digits
    python -m draftwood_images.continuous my-digits --method reflected --output sheet.png

``reflected`` and ``aligned`` draw what the larger model alone would. ``cspd`` does so where both
models have the same deviations; ``cspd-released`` trades quality.
"""
