"""How long a poll shows that a consumer is connected: brokers count by it, and the admin API tells operators."""

from typing import Final

WHILE_S: Final = 10
"""A client counts as connected for so long after its last pop. A proxy keeps an idle interest for as long."""
