"""Measure methods: protocols, prompts, records and conclusions from them.

``draftwood bench`` is the command; its records are read with ``draftwood_bench.records.files``.
"""

import draftwood as draftwood  # lets old module paths forward
