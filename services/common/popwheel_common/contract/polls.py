"""Time for which a poll shows that a consumer is connected: brokers and the admin API go by it."""

from typing import Final

WHILE_S: Final = 10
"""A client counts as connected for so long after its last pop. A proxy keeps an idle interest for as long."""
