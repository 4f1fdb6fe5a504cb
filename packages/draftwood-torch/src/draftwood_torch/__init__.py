"""Models, heads and the hook that run in PyTorch; draftwood finds them through ``backend``."""
