"""Conversion of a next-token model into one that fills masks."""
