"""The ways in which a poll can wait for messages. The article on stateless real-time consumption compares them."""

from enum import Enum


class Mode(Enum):
    """How a poll waits; its value is the word for it in options and metrics."""

    NOTIFY = "notify"
    """Pop with notify: it is woken for a message at any broker."""
    PLAIN = "plain"
    """Plain long polling: it stays at the broker that its client named."""
    SLICED = "sliced"
    """As MNS does it: short pops round the brokers, a slice of time each; when a quota is used up, it stays at one."""
