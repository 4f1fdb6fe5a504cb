"""Names of the native path's types of weights, keys and values."""

from typing import Literal

Products = Literal["float32", "bfloat16", "int8", "int4"]
INTEGERS: tuple[Products, ...] = ("int8", "int4")
"""Products of rows that are rounded to 8 bits; what they are made from is stored in so many."""

CacheType = Literal["int8"]
"""Keys and values other than in floats."""
CACHES: tuple[CacheType, ...] = ("int8",)
