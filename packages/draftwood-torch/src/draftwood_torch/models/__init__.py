"""Models of Transformers, run in PyTorch."""
