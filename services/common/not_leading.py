"""How a refusal begins of a controller that does not lead. Its code alone says less: the leader uses it, too."""

from typing import Final

NOT_LEADING_WORDS: Final = ("this controller does not lead", "no controller leads", "this controller is stopping")
"""The ways that it begins: none of them is said once the controller has looked at what it was asked (`Leadership`)."""
