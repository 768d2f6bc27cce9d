"""Popwheel at work: `make demo`."""
