"""Models of Transformers, read from folders."""
