"""Measures a server of the protocol from outside: `python -m bench` (see docs/internals/performance.md)."""
