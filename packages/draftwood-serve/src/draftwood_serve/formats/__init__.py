"""Formats of answers."""
