"""Fuzzers and fault loops that stay: all seeded, each with a size, run whole by ``make torture``.

``python -m torture.calls 10000`` and its like run from ``tests/``; the suite runs a short version
of each (``tests/test_torture.py``).
"""
