"""Structured garbage for the HTTP/2 core and every call of an in-process standalone (`make fuzz`)."""
