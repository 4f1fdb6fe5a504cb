"""The peers that `benchmarks/peers.py` measures draftwood against.

The modules `run_*.py` are adapters: scripts that run inside a peer's own environment and answer requests, see
`protocol.py`. The other modules run in draftwood's environment.
"""
