"""Protocols, configurations, prompts, and the units of work they make."""
