"""The sink: tasks send rows as messages."""
