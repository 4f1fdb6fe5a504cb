"""Executors: they make the steps of a text, one file per way."""
