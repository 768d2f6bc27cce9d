"""Clients that other people have written, unmodified, against a real process."""
