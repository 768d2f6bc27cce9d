"""Whether compiled modules are tested (`make test-compiled`)."""

from services.rpc.http2 import connection


def is_compiled() -> bool:
    """Whether the modules that can be compiled are."""
    return not (connection.__file__ or "").endswith(".py")
