"""Sash beside the systems that people use for the same questions: same data, same questions, same machine, one run.

    python -m bench.peers                 every system ──▶ docs/background/peers.md
      └─ python -m bench.peers.worker     one system in a process of its own, started from its package, checked by NumPy

`python -m bench.peers --setup` installs the systems that come from PyPI into an environment of their own.
"""
