"""Check of passwords against Argon2id hashes: in a thread, two at a time, as each takes 64 MiB and some 50 ms."""

import asyncio
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

PASSWORD_LENGTH_MAX: Final = 1_024
_AT_ONCE: Final = 2


class Passwords:
    """Checker of passwords."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._of_nobody = ""

    async def check(self, password_hash: str | None, password: str) -> bool:
        """Return whether a password matches a hash.

        Args:
            password_hash: of the user; None for an unknown user: the check takes as long and fails.
            password: as it was typed.
        """
        async with self._room:
            return await asyncio.to_thread(self._check, password_hash, password[:PASSWORD_LENGTH_MAX])

    def _check(self, password_hash: str | None, password: str) -> bool:
        if not self._of_nobody:
            self._of_nobody = self._hasher.hash("nobody")
        try:
            return self._hasher.verify(password_hash or self._of_nobody, password) and password_hash is not None
        except (VerificationError, InvalidHashError):
            return False


def hash_of(password: str) -> str:
    """Hash a password for the file of users."""
    return PasswordHasher().hash(password)
