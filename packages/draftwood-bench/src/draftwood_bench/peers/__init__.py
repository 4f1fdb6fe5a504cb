"""Other systems, measured in the same run.

The modules ``run_*.py`` are adapters: scripts that run inside a peer's own environment and answer
requests, see ``protocol.py``; they import nothing of draftwood that their environment lacks. The
other modules run in draftwood's.
"""
