"""Models of Transformers that draw: they need PyTorch, which each asks for when it is opened."""
