"""Checks of settings that need an extra of the package, before a process writes or opens anything."""

from popwheel_common.extras import needs_extra
from popwheel_proxy.options import ProxyOptions


def check_extras(options: ProxyOptions) -> None:
    """Load the libraries that these settings need, which would be loaded later in any case.

    Args:
        options: of a proxy.

    Raises:
        MissingExtraError: one is not installed.
    """
    if options.transport == "grpcio":
        with needs_extra("proxy.transport", "must be popwheel", "grpcio"):
            import grpc  # noqa: F401
    if options.redis_url:
        with needs_extra("proxy.redis_url", "must be empty", "redis"):
            import redis  # noqa: F401
