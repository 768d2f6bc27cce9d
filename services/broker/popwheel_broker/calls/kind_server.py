"""A kind of message that does not go into its queue at once, as a broker serves it for one term."""

from typing import Protocol

from popwheel_broker.log.run_batch import RunWriter
from popwheel_rpc.service import Service


class KindServer(RunWriter, Protocol):
    """Accepts messages of one kind, and serves the other requests about them."""

    def bind(self, service: Service) -> None:
        """Serve its methods."""
