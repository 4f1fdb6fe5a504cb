"""Models, heads and the hook that run in PyTorch: a guest, and the only room that imports it."""
