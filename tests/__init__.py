"""Tests by kind: unit, sim, integration (real processes), interop (other people's clients)."""
