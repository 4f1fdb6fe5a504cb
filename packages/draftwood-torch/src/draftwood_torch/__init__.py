"""Models, heads and the hook that run in PyTorch: a guest, and the only room that imports it."""

from draftwood.optional import torch_needed

torch_needed("this part of draftwood")
