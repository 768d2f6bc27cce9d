"""Popwheel in tests: a server of a test's own. Imports the standard library only, as every test process loads it."""

from popwheel_testing.server import PopwheelServer, ServerFailedError

__all__ = ["PopwheelServer", "ServerFailedError"]
