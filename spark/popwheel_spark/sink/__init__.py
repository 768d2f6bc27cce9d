"""Rows as messages, sent by tasks."""
