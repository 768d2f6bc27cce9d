"""Process of a broker on this machine, identified by its command line, so that no other is ever signalled."""

import os
import signal
from contextlib import closing
from pathlib import Path

from popwheel_cli.settings import assigned
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class StrangeProcessError(Exception):
    """Error of a process number that is unknown here, or is another process's."""


class BrokerProcess:
    """Process of one replica, by pidfd: signals reach this very process even if its number is reused.

    Args:
        pid: its number, perhaps reported from another machine or container.
        group: the broker group.
        replica: number of the replica.

    Raises:
        StrangeProcessError: the process of that number here was not started as that replica by `popwheel cluster`.
    """

    def __init__(self, pid: int, group: str, replica: int) -> None:
        try:
            self._descriptor = os.pidfd_open(pid)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError as error:
            raise StrangeProcessError(f"there is no process {pid} here that could be looked at ({error})") from error
        is_popwheel = any(word == "popwheel_cli.main" or Path(word).name == "popwheel" for word in words)
        settings = assigned({"broker.name": group, "broker.replica": replica})
        if not (is_popwheel and {"broker", *settings} <= set(words)):
            os.close(self._descriptor)
            raise StrangeProcessError(f"process {pid} here is another one: {' '.join(words)[:80]}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal.

        Raises:
            ProcessLookupError: it has ended.
        """
        signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Close its handle."""
        os.close(self._descriptor)


def kill_replica(pid: int, group: str, replica: int) -> None:
    """Kill a replica's process as kill -9 does.

    Args:
        pid, group, replica: as of `BrokerProcess`.

    Raises:
        StatusError: PRECONDITION_FAILED, it is not there, or is another process.
    """
    try:
        with closing(BrokerProcess(pid, group, replica)) as process:
            process.signal(signal.SIGKILL)
    except (StrangeProcessError, ProcessLookupError) as error:
        raise StatusError(Code.PRECONDITION_FAILED, f"nothing was killed: {error}") from error
