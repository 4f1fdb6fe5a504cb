"""Measuring methods: protocols, prompts, records and what may be concluded from them.

``draftwood bench`` is the command; its records are read with ``draftwood_bench.records.files``.
"""
