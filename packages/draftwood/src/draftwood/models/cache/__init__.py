"""Caches of keys and values for several sequences: in one piece, or in blocks that they share."""
