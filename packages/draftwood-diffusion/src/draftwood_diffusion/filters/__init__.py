"""Filters for the rule ``learned``: what they learn from, and how."""
