"""Caches of keys and values for several sequences: in one piece, or in blocks that they share."""

from draftwood.models.cache.pool import CachePool, CacheSlice, LayerShape

__all__ = ["CachePool", "CacheSlice", "LayerShape"]
