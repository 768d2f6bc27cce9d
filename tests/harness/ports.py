"""Free TCP ports of this machine."""

import itertools
import os
import random
import socket

_FIRST = 10_000
_SHARE = 2_500
_SHARES = 8
"""All below 32768, where Linux begins to give ports to whoever asks for any: a server that is away for a moment, or not
there yet, finds its port still free. Each of several pytest processes takes from a share of its own."""

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
_numbers = itertools.count(random.randrange(_SHARE))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on at this moment, all different, and others than those given before.

    Raises:
        OSError: there are no more.
    """
    found: list[int] = []
    for number in itertools.islice(_numbers, _SHARE):
        if len(found) == count:
            return found
        port = _FIRST + _worker * _SHARE + number % _SHARE
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    raise OSError(f"no {count} free ports from {_FIRST + _worker * _SHARE} on")
